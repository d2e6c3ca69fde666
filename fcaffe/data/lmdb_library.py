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

MOST_READERS = 1024  # of a lock file that is created here: each net of each worker is one
MODE = 0o664  # Caffe's
MAP_SIZE = 1 << 40  # bytes, Caffe's; larger than any file, since a map cannot grow while it is read

_environments: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()  # by device and inode
environments_lock = threading.Lock()


def _renew() -> None:
    """A forked process opens environments of its own, as LMDB demands, by a copy of liblmdb that knows no others."""
    global _environments, environments_lock
    _environments, environments_lock = weakref.WeakValueDictionary(), threading.Lock()
    library.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@functools.cache
def library() -> Any:
    """The private copy. Where the system cannot load a module from memory, it is py-lmdb's own module."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        module = importlib.import_module("lmdb.cpython")
        assert module.__file__ is not None
        with open(module.__file__, "rb") as source, open(os.memfd_create("fcaffe-lmdb"), "wb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            name = f"fcaffe_lmdb_{os.getpid()}.cpython"  # Python loads a name once
            loader = importlib.machinery.ExtensionFileLoader(name, f"/proc/self/fd/{copy.fileno()}")
            spec = importlib.util.spec_from_loader(name, loader)
            assert spec is not None
            private = importlib.util.module_from_spec(spec)
            loader.exec_module(private)
            private.__file__ = module.__file__  # by now another file may have the descriptor, such as a pipe
            return private
    return lmdb


library()  # loads it once, before there are threads


def begin(folder: str) -> tuple[Any, Any]:
    """The environment of the database in a folder, and a read transaction on its newest state.

    Where possible the transaction is registered in the lock file, so that writers do not reuse its pages. Raises
    lmdb.Error of `library()`.
    """
    protected = not os.stat(folder).st_mode & 0o222  # where root could write all the same
    try:
        return _begin(folder, lock=not protected)
    except library().Error:  # the lock file cannot be written
        return _begin(folder, lock=False)


def _begin(folder: str, lock: bool) -> tuple[Any, Any]:
    status = os.stat(os.path.join(folder, "data.mdb"))
    identity = status.st_dev, status.st_ino
    with environments_lock:
        environment = _environments.get(identity)
        if environment is None:
            environment = _environments[identity] = _open(folder, lock)
        environment.reader_check()  # frees the slots of killed processes
        return environment, environment.begin()


def _open(folder: str, lock: bool) -> Any:
    opened = functools.partial(
        library().open, folder, readonly=True, create=False, lock=lock, mode=MODE, max_readers=MOST_READERS
    )
    try:
        return opened(map_size=MAP_SIZE)
    except library().Error:  # addresses are limited (ulimit -v), or the file system limits the size of files
        return opened(map_size=0)  # as large as the writer's
