"""Where Python looks for modules: in the current folder for user code only, and there behind Python's own library.

So a file that lies in the folder of a training by chance, such as queue.py, replaces no module.
"""

from __future__ import annotations

import os
import sys


def python(*words: str) -> list[str]:
    """The words that start Python with `-m MODULE ...` or `-c CODE ...`, without the current folder in its path."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", *words]
    option, what, *rest = words
    code = what if option == "-c" else f"import runpy; runpy.run_module({what!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import sys; del sys.path[0]\n{code}", *rest]


def leave_current_folder() -> None:
    """Take the current folder, where `python -m` looks first, out of this process's path."""
    try:
        folder = os.getcwd()
    except OSError:  # it has been removed
        return
    if sys.path[0] == folder:
        del sys.path[0]


def add_current_folder() -> bool:
    """Let this process find user code in the current folder. Returns False if it does so already."""
    if "" in sys.path or os.getcwd() in sys.path:
        return False
    import subprocess  # noqa: F401 - looks for msvcrt, which only the library of Windows has: not in that folder

    library = os.path.dirname(os.__file__)
    own = [index for index, entry in enumerate(sys.path) if entry in (library, os.path.join(library, "lib-dynload"))]
    sys.path.insert(max(own, default=-1) + 1, "")
    return True
