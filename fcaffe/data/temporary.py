"""Temporary folders that are removed after their owners were killed.

The owner of a folder holds a lock on it, which the system releases when the process ends, in whatever way. So whoever
gets the lock knows that the owner is dead, also if that was in another container.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import os
import re
import shutil
from collections.abc import Iterator

NUMBERS = re.compile(r"\d+-\d+")  # behind the prefix: of the process, and of its folder


class TemporaryFolder:
    """A new folder `path`, named `prefix` and two numbers, which this process holds until `remove` or its end.

    Folders of the same prefix whose owners are dead are removed first.
    """

    def __init__(self, prefix: str, mode: int = 0o777) -> None:
        remove_dead(prefix)
        for number in itertools.count():
            self.path = f"{prefix}{os.getpid()}-{number}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, mode)
                self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                with contextlib.suppress(OSError):  # where there are no locks, nobody gets it who might remove this
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.exists(self.path):  # else another took it for a dead one's before it had the lock
                    return
                os.close(self._lock)

    def remove(self) -> None:
        """Remove what is left of it, and let go of it; may be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_dead(prefix: str) -> None:
    """Remove this user's folders whose names begin with `prefix` and whose owners have ended."""
    for path in glob.glob(glob.escape(prefix) + "*"):
        if not NUMBERS.fullmatch(path.removeprefix(prefix)):
            continue
        with contextlib.suppress(OSError), _locked(path):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """With the lock on a folder of this user's; an OSError if it cannot be had."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(folder)
