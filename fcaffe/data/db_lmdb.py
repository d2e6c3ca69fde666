"""LMDB folders, read and written."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator

import lmdb

from fcaffe import log
from fcaffe.data.database import Database, Record, new_folder
from fcaffe.errors import DataError

COMMIT_INTERVAL = 1000  # records per transaction, as convert_imageset does
FIRST_MAP_SIZE = 64 << 20

# LMDB allows a file to be open only once in a process, but two nets (train and test) may read the same one.
_environments: weakref.WeakValueDictionary[tuple[int, int], lmdb.Environment] = weakref.WeakValueDictionary()
_environments_lock = threading.Lock()


def is_lmdb(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "data.mdb"))


class Lmdb(Database):
    """An LMDB folder, opened read-only and without a lock file."""

    kind = "LMDB"
    problems = (lmdb.Error,)

    def __init__(self, source: str) -> None:
        super().__init__(source)
        if not is_lmdb(source):
            raise DataError(f'folder "{source}" has no data.mdb: it is not an LMDB')
        self._environment: lmdb.Environment | None = self._open()
        with self._errors_named():
            self._entries = self._environment.stat()["entries"]
            self._transaction = self._environment.begin(buffers=False)
            self._cursor = self._transaction.cursor()
        self.seek(0)
        log.info(f"Opened lmdb {source}", "db_lmdb.cpp:35")

    @property
    def entries(self) -> int:
        return self._entries

    def close(self) -> None:
        if self._environment is not None:
            self._cursor.close()
            self._transaction.abort()
            self._environment = None  # the last reader's reference closes the file

    def _first(self) -> bool:
        return self._cursor.first()

    def _next(self) -> bool:
        return self._cursor.next()

    def _item(self) -> Record:
        return self._cursor.item()

    def _all(self) -> Iterator[Record]:
        return iter(self._transaction.cursor())

    def _open(self) -> lmdb.Environment:
        path = os.path.join(self.source, "data.mdb")
        with _environments_lock:
            status = os.stat(path)
            environment = _environments.get((status.st_dev, status.st_ino))
            if environment is None:
                try:
                    environment = lmdb.open(self.source, readonly=True, lock=False, create=False)
                    self._check_length(environment, status.st_size)
                except (lmdb.Error, OSError) as problem:
                    raise self._damaged(problem) from problem
                _environments[status.st_dev, status.st_ino] = environment
        return environment

    def _check_length(self, environment: lmdb.Environment, size: int) -> None:
        """Reading past the end of a file cut short would not be an error but kill the process (SIGBUS)."""
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if size < needed:
            environment.close()
            raise DataError(
                f'LMDB "{self.source}" is cut short: data.mdb has {size} of {needed} bytes; copy or make it again'
            )


def write_lmdb(path: str, records: Iterable[Record]) -> int:
    """Make the LMDB folder `path` from (key, value) records and return their number.

    The folder appears complete or not at all. A target that exists already, other than an empty folder, is refused.
    """
    with new_folder(path, "LMDB", lmdb.Error) as temporary:
        count = _write_records(temporary, records)
        if count == 0:
            raise DataError(f'no records for the LMDB "{path}"')
    return count


def _write_records(folder: str, records: Iterable[Record]) -> int:
    # Nobody else knows the folder yet, so neither a lock nor a sync at every commit is needed.
    environment = lmdb.open(folder, map_size=FIRST_MAP_SIZE, lock=False, sync=False, metasync=False)
    try:
        count = 0
        pending = []
        for record in records:
            pending.append(record)
            if len(pending) == COMMIT_INTERVAL:
                _commit(environment, pending)
                count += len(pending)
                pending = []
        _commit(environment, pending)
        environment.sync(True)
        return count + len(pending)
    finally:
        environment.close()


def _commit(environment: lmdb.Environment, records: list[Record]) -> None:
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, value in records:
                    if not transaction.put(key, value, overwrite=False):
                        raise DataError(f"two records have the key {key!r}")
            return
        except lmdb.MapFullError:
            environment.set_mapsize(environment.info()["map_size"] * 2)
