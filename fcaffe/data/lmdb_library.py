"""liblmdb: a private copy of py-lmdb's extension module, and the environments that readers share.

py-lmdb opens an environment only once in a process. BVLC Caffe has its own copy of liblmdb, so a script can open the
database of a net with py-lmdb. fcaffe loads py-lmdb's extension a second time for the same reason.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import shutil
import threading
import weakref
from typing import Any

import lmdb

LOCK_FILE = "lock.mdb"
MOST_READERS = 1024  # of a lock file that is created here: each net of each worker is one
MODE = 0o664  # Caffe's
MAP_SIZE = 1 << 40  # bytes, Caffe's; larger than any file, since a map cannot grow while it is read

_environments: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()  # by device and inode
_lock = threading.Lock()


@functools.cache
def library() -> Any:
    """The private copy. Where the system cannot load a module from memory, it is py-lmdb's own module."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        module = importlib.import_module("lmdb.cpython")
        assert module.__file__ is not None
        with open(module.__file__, "rb") as source, open(os.memfd_create("fcaffe-lmdb"), "wb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            loader = importlib.machinery.ExtensionFileLoader("fcaffe_lmdb.cpython", f"/proc/self/fd/{copy.fileno()}")
            spec = importlib.util.spec_from_loader("fcaffe_lmdb.cpython", loader)
            assert spec is not None
            private = importlib.util.module_from_spec(spec)
            loader.exec_module(private)
            return private
    return lmdb


library()  # loads it once, before there are threads


class Snapshot:
    """A read transaction on the newest state of the database in a folder.

    Where possible it is registered in the lock file, so that writers do not reuse its pages. Otherwise `unlocked` says
    why. Raises lmdb.Error of `library()`.
    """

    def __init__(self, folder: str) -> None:
        self._environment: Any = None
        self.unlocked = _unwritable(folder) or _opened_by_script(folder)
        if self.unlocked is None:
            try:
                self._begin(folder, lock=True)
            except library().Error as error:
                self.unlocked = f"{LOCK_FILE}: {' '.join(str(error).split())}"
        if self.unlocked is not None:
            self._begin(folder, lock=False)

    def _begin(self, folder: str, lock: bool) -> None:
        status = os.stat(os.path.join(folder, "data.mdb"))
        self.identity = status.st_dev, status.st_ino
        with _lock:
            self._environment = _environments.get(self.identity)
            if self._environment is None:
                self._environment = _open(folder, lock)
                _environments[self.identity] = self._environment
            self._environment.reader_check()  # frees the slots of killed processes
            self.transaction = self._environment.begin()

    @property
    def entries(self) -> int:
        return self.transaction.stat()["entries"]

    @property
    def bytes_needed(self) -> int:
        """The size of a file that holds all pages."""
        return (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]

    def is_overtaken(self) -> bool:
        """Whether a process has written since then, and may have reused pages of the snapshot.

        A script that opens and closes the database with a lock of its own removes the registration, since the locks of
        a process are released when any handle is closed.
        """
        return self._environment.info()["last_txnid"] != self.transaction.id() and not self._is_registered()

    def _is_registered(self) -> bool:
        readers = (line.split() for line in self._environment.readers().splitlines()[1:])
        return [str(os.getpid()), str(self.transaction.id())] in ([words[0], words[-1]] for words in readers)

    def close(self) -> None:
        """End the transaction. May be called twice."""
        with _lock:  # the last reader closes the environment before another one opens it
            self.transaction.abort()
            self._environment = None


def _open(folder: str, lock: bool) -> Any:
    opened = functools.partial(
        library().open, folder, readonly=True, create=False, lock=lock, mode=MODE, max_readers=MOST_READERS
    )
    try:
        return opened(map_size=MAP_SIZE)
    except library().Error:  # addresses are limited (ulimit -v), or the file system limits the size of files
        return opened(map_size=0)  # as large as the writer's


def _opened_by_script(folder: str) -> str | None:
    """Why a lock of this process's own is unsafe; None if it is safe. A second one would reset the lock file."""
    if library() is lmdb:
        return None
    try:
        lmdb.open(folder, readonly=True, create=False, lock=False).close()
    except lmdb.Error as error:
        return " ".join(str(error).split())
    return None


def _unwritable(folder: str) -> str | None:
    """Why the lock file cannot be written; None if it can. It is not opened: closing it would release its locks."""
    path = os.path.join(folder, LOCK_FILE)
    if not os.path.exists(path):
        return None if _is_writable(folder) else f"there is no {LOCK_FILE}, and the folder cannot be written"
    return None if _is_writable(path) else f"{LOCK_FILE} cannot be written"


def _is_writable(path: str) -> bool:
    """Whether the file's mode allows writing. root could write in spite of the mode, and does not."""
    return os.access(path, os.W_OK) and bool(os.stat(path).st_mode & 0o222)
