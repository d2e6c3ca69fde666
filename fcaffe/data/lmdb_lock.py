"""A reader's registration in the lock file of an LMDB, which keeps writers from reusing the pages that it reads."""

from __future__ import annotations

import functools
import os
import threading
import weakref

import lmdb

from fcaffe import log
from fcaffe.data.lmdb_file import PageFile

LOCK_FILE = "lock.mdb"
MOST_READERS = 1024  # of a lock file that is made here: each net of each worker is one
MODE = 0o664  # Caffe's
ATTEMPTS = 100  # to begin a transaction whose meta page is still there
# Caffe's, in bytes. A map cannot grow while transactions read by it, so it is larger than any file from the beginning;
# it costs addresses and no memory, as records are not read by it.
MAP_SIZE = 1 << 40

# A process may have a file open by liblmdb only once, but two nets (train and test) may read the same one.
_environments: weakref.WeakValueDictionary[tuple[int, int], lmdb.Environment] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class Reader:
    """Holds on to a snapshot of the records: the newest, at the time of making.

    It is `registered` in the lock file as long as it lives, so that writers leave the pages of the snapshot alone.
    Where that cannot be written, or has no room, the log says so, and `is_overtaken` tells whether they may have been
    written over.
    """

    def __init__(self, folder: str, file: PageFile) -> None:
        self._file = file
        self._transaction: lmdb.Transaction | None = None
        problem = _unwritable(folder)
        if problem is None:
            try:
                self._register(folder)
            except lmdb.Error as error:
                problem = f"{LOCK_FILE}: {' '.join(str(error).split())}"
        if self._transaction is None:
            self.snapshot, _ = file.snapshots()
            log.info(f"LMDB {folder} is read without a lock ({problem}): no other process may write to it meanwhile")

    def is_overtaken(self) -> bool:
        """Whether another process has written since, and so may have reused pages of the snapshot."""
        return self._transaction is None and self._file.snapshots()[0].transaction != self.snapshot.transaction

    def close(self) -> None:
        """Let writers reuse the pages."""
        with _lock:  # the last one closes the environment, which must be over before another opens the file
            if self._transaction is not None:
                self._transaction.abort()
                self._transaction = None

    def _register(self, folder: str) -> None:
        with _lock:
            environment = _environments.get(self._file.identity)
            if environment is None:
                environment = _open(folder)
                _environments[self._file.identity] = environment
            environment.reader_check()  # those of killed processes would keep writers from reusing pages for ever
            for _ in range(ATTEMPTS):
                transaction = environment.begin()
                found = [it for it in self._file.snapshots() if it.transaction == transaction.id()]
                if found:
                    self._transaction, self.snapshot = transaction, found[0]
                    return
                transaction.abort()  # two more have ended since and written over the meta page of this one
        raise lmdb.Error("other processes write to it without a pause")


def _open(folder: str) -> lmdb.Environment:
    opened = functools.partial(lmdb.open, folder, readonly=True, create=False, mode=MODE, max_readers=MOST_READERS)
    try:
        return opened(map_size=MAP_SIZE)
    except lmdb.Error:  # addresses are limited (`ulimit -v`), or the file system has no files of this size
        return opened(map_size=0)  # as large as the writer's, beyond which readers are not registered


def _unwritable(folder: str) -> str | None:
    """Why the lock file cannot be written; None if it can. The file is not opened to find out: closing it would drop
    the locks that this process may have on it already."""
    path = os.path.join(folder, LOCK_FILE)
    if not os.path.exists(path):
        return None if _is_writable(folder) else f"there is no {LOCK_FILE}, and the folder cannot be written"
    return None if _is_writable(path) else f"{LOCK_FILE} cannot be written"


def _is_writable(path: str) -> bool:
    """What nobody is to write to, root does not write to either."""
    return os.access(path, os.W_OK) and bool(os.stat(path).st_mode & 0o222)
