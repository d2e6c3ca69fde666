"""Lets `import caffe` mean fcaffe in a process, whatever other Caffe it could find.

`fcaffe run` does so for a script, before the script runs; a net with Python layers does so for their modules. This
module imports next to nothing, so that a script finds its process as Python starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import CodeType, ModuleType, TracebackType

# The folder that holds the package `caffe`. An installed fcaffe puts it at the end of `sys.path`, so that `import
# caffe` finds it unless there is another Caffe.
TOP_LEVEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pycaffe", "top_level")

# Whether the current folder stays in sys.path once a Python layer has been imported, so that its methods may import
# modules from it. Only the command line sets this.
keeps_current_folder = False


class CaffeFinder:
    """Finds the package `caffe` in fcaffe. First in `sys.meta_path`, it comes before every folder in `sys.path`."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [TOP_LEVEL]) if name == "caffe" else None


def provide_caffe() -> None:
    """Let `import caffe` find fcaffe from now on, unless the process has imported another caffe before."""
    if "caffe" in sys.modules:
        return
    spec = CaffeFinder.find_spec("caffe")
    assert spec is not None and spec.loader is not None
    module = sys.modules["caffe"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["caffe"]
        raise


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Run a file as `python script.py arguments...` does, in this process, where `import caffe` means fcaffe.

    If the script raises, its traceback has been printed when this function raises the same exception.
    """
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as problem:
        sys.stderr.write(f"fcaffe run: can't open file {script!r}: {problem.strerror}\n")
        raise SystemExit(2) from None
    file_name = os.path.abspath(script)
    main = _main_module([script, *arguments], os.path.dirname(os.path.realpath(script)))
    main.__dict__.update(__file__=file_name, __cached__=None)
    main.__loader__ = SourceFileLoader("__main__", file_name)
    code: CodeType | None = None
    try:
        code = compile(source, file_name, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except BaseException as error:
        _print_from(code, error)
        raise


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Run a module as `python -m module arguments...` does; otherwise as `run_script`."""
    import runpy

    _main_module(["-m", *arguments], os.getcwd())
    run = runpy._run_module_as_main  # type: ignore[attr-defined]  # what Python itself calls
    try:
        run(module)
    except BaseException as error:
        _print_from(run.__code__, error)
        raise


def _main_module(arguments: list[str], folder: str) -> ModuleType:
    """Return a new `__main__` of a process that looks for modules in `folder` first and has these arguments."""
    sys.meta_path.insert(0, CaffeFinder)
    sys.argv = arguments
    if not getattr(sys.flags, "safe_path", False):  # which Python 3.10 does not have
        sys.path[0] = folder
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    return main


def _print_from(code: CodeType | None, error: BaseException) -> None:
    """Print an exception with the part of its traceback that begins in `code`; SystemExit is Python's to handle."""
    if isinstance(error, SystemExit):
        return
    error.__traceback__ = _within(error.__traceback__, code)
    sys.excepthook(type(error), error, error.__traceback__)
    sys.excepthook = lambda *_: None  # Python itself, which gives the exit code, would print our frames too


def _within(trace: TracebackType | None, code: CodeType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in `code`; None if that was not reached."""
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace
