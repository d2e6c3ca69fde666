"""Databases of (key, value) records: an LMDB folder, read in key order over and over, or written."""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator

import lmdb

from fcaffe import log
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb

COMMIT_INTERVAL = 1000  # records per transaction, as convert_imageset does
FIRST_MAP_SIZE = 64 << 20

# LMDB allows a file to be open only once in a process, but two nets (train and test) may read the same one.
_environments: weakref.WeakValueDictionary[tuple[int, int], lmdb.Environment] = weakref.WeakValueDictionary()
_environments_lock = threading.Lock()


def open_database(source: str, backend: int) -> Database:
    """The database that a `data_param` names; `backend` is pb.DataParameter.LMDB or LEVELDB."""
    if not source:
        raise DataError("data_param.source is missing: name the LMDB folder")
    if backend != pb.DataParameter.LMDB:
        if os.path.isfile(os.path.join(source, "data.mdb")):
            raise DataError(f'"{source}" is an LMDB, but data_param.backend is LEVELDB: write backend: LMDB')
        raise DataError(
            f'"{source}": data_param.backend is LEVELDB (the default), which this version cannot read: make the '
            "database anew as an LMDB, or copy its records unchanged into one, and write backend: LMDB"
        )
    return Database(source)


class Database:
    """The records of an LMDB folder in key order, from the first again after the last.

    `position` counts the records read so far, rounds included. A folder that is missing, damaged or empty is a
    DataError. Opened read-only and without a lock file, so that it may lie on a read-only file system.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._environment: lmdb.Environment | None = _open_environment(source)
        try:
            self.entries: int = self._environment.stat()["entries"]
            if self.entries == 0:
                raise DataError(f'LMDB "{source}" holds no records: fill it, or correct data_param.source')
            self._transaction = self._environment.begin(buffers=False)
            self._cursor = self._transaction.cursor()
            self.seek(0)
        except lmdb.Error as problem:
            raise _damaged(source, problem) from problem
        log.info(f"Opened lmdb {source}", "db_lmdb.cpp:35")

    def seek(self, position: int) -> None:
        """Continue as if `position` records had been read; steps over keys without touching values."""
        try:
            self._cursor.first()
            for _ in range(position % self.entries):
                self._cursor.next()
        except lmdb.Error as problem:
            raise _damaged(self.source, problem) from problem
        self.position = position

    def peek(self) -> tuple[bytes, bytes]:
        """The next record, without moving on."""
        try:
            return self._cursor.item()
        except lmdb.Error as problem:
            raise _damaged(self.source, problem) from problem

    def read(self, count: int) -> list[tuple[bytes, bytes]]:
        """The next `count` records."""
        records = []
        cursor = self._cursor
        try:
            for _ in range(count):
                records.append(cursor.item())
                if not cursor.next():
                    log.restarting_prefetch()
                    cursor.first()
        except lmdb.Error as problem:
            raise _damaged(self.source, problem) from problem
        self.position += count
        return records

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Every record once; does not move the position."""
        try:
            yield from self._transaction.cursor()
        except lmdb.Error as problem:
            raise _damaged(self.source, problem) from problem

    def close(self) -> None:
        if self._environment is not None:
            self._cursor.close()
            self._transaction.abort()
            self._environment = None  # the last reader's reference closes the file


def _open_environment(source: str) -> lmdb.Environment:
    if not os.path.exists(source):
        raise DataError(
            f'LMDB "{source}" does not exist (looked for {os.path.abspath(source)}): make it first, or correct '
            "data_param.source, which is relative to the folder that the command runs in"
        )
    if not os.path.isdir(source):
        folder = os.path.dirname(source) or "."
        raise DataError(f'"{source}" is a file, and an LMDB is named by its folder: give "{folder}"')
    path = os.path.join(source, "data.mdb")
    if not os.path.isfile(path):
        hint = "it looks like a LevelDB, which this version cannot read" if _is_leveldb(source) else "it is not an LMDB"
        raise DataError(f'folder "{source}" has no data.mdb: {hint}')
    with _environments_lock:
        status = os.stat(path)
        environment = _environments.get((status.st_dev, status.st_ino))
        if environment is None:
            try:
                environment = lmdb.open(source, readonly=True, lock=False, create=False)
                _check_length(source, environment, status.st_size)
            except (lmdb.Error, OSError) as problem:
                raise _damaged(source, problem) from problem
            _environments[status.st_dev, status.st_ino] = environment
    return environment


def _check_length(source: str, environment: lmdb.Environment, size: int) -> None:
    """Reading past the end of a file cut short would not be an error but kill the process (SIGBUS)."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if size < needed:
        environment.close()
        raise DataError(f'LMDB "{source}" is cut short: data.mdb has {size} of {needed} bytes; copy or make it again')


def _is_leveldb(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "CURRENT"))


def _damaged(source: str, problem: Exception) -> DataError:
    if isinstance(problem, DataError):
        return problem
    return DataError(f'LMDB "{source}" cannot be read ({problem}): it is damaged or not an LMDB; copy or make it again')


def write_lmdb(path: str, records: Iterable[tuple[bytes, bytes]]) -> int:
    """Make the LMDB folder `path` from (key, value) records and return their number.

    The folder appears complete or not at all. A target that exists already, other than an empty folder, is refused.
    """
    path = os.path.normpath(path)
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise DataError(f'"{path}" exists already: delete it or name another folder')
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        os.makedirs(temporary)
        count = _write_records(temporary, records)
        if count == 0:
            raise DataError(f'no records for the LMDB "{path}"')
        os.rename(temporary, path)
    except (lmdb.Error, OSError) as problem:
        raise DataError(f'cannot write the LMDB "{path}": {problem}') from problem
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _write_records(folder: str, records: Iterable[tuple[bytes, bytes]]) -> int:
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


def _commit(environment: lmdb.Environment, records: list[tuple[bytes, bytes]]) -> None:
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, value in records:
                    if not transaction.put(key, value, overwrite=False):
                        raise DataError(f"two records have the key {key!r}")
            return
        except lmdb.MapFullError:
            environment.set_mapsize(environment.info()["map_size"] * 2)
