"""LMDB folders, read and written."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import lmdb

from fcaffe import log
from fcaffe.data.database import Database, Record, Writer, new_folder, register_database
from fcaffe.data.lmdb_file import Cursor, PageError, PageFile, Snapshot
from fcaffe.data.lmdb_lock import LOCK_FILE, Reader
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb

COMMIT_INTERVAL = 1000  # records per transaction, as convert_imageset does
FIRST_MAP_SIZE = 64 << 20


@register_database
class Lmdb(Database):
    """An LMDB folder, as it was when it was opened: what other processes write to it meanwhile is not seen."""

    kind = "LMDB"
    backend = pb.DataParameter.LMDB
    problems = (PageError, OSError)

    @classmethod
    def recognises(cls, folder: str) -> bool:
        return os.path.isfile(os.path.join(folder, "data.mdb"))

    def __init__(self, source: str) -> None:
        super().__init__(source)
        if not self.recognises(source):
            raise DataError(f'folder "{source}" has no data.mdb: it is not an LMDB')
        with self._errors_named():
            self._file = PageFile(os.path.join(source, "data.mdb"))
            self._file.snapshots()  # is sound, or nothing is asked of liblmdb
            self._reader = Reader(source, self._file)
            self._go_to(self._reader.snapshot)
        log.opened_lmdb(source)

    @property
    def entries(self) -> int:
        return self._snapshot.entries

    def read(self, count: int) -> list[Record]:
        records = super().read(count)
        self._check_not_overtaken()
        return records

    def version(self) -> tuple[Any, Snapshot]:
        return self._identity(), self._snapshot

    def agree_on(self, version: tuple[Any, Snapshot]) -> None:
        """The other process must keep its database open meanwhile, since its registration in the lock file keeps
        writers from the pages. A copy on another host must have as many records."""
        identity, snapshot = version
        if identity == self._identity() and snapshot != self._snapshot:
            self._go_to(snapshot)
        elif snapshot.entries != self.entries:
            raise DataError(
                f'the LMDB "{self.source}" has {self.entries} records here, but {snapshot.entries} where worker 0 '
                "reads it: wait until nobody writes to it, or copy it again"
            )

    def _identity(self) -> tuple[str, tuple[int, int]]:
        """Which file of which host this is."""
        return _host(), self._file.identity

    def close(self) -> None:
        self._reader.close()
        self._file.close()

    def _go_to(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._cursor = Cursor(self._file, snapshot)
        size, needed = self._file.size, snapshot.bytes_needed
        if size < needed:  # which may be: pages at the end that are free need never have been written
            try:
                self._cursor.check_length()
            except PageError as problem:
                raise DataError(
                    f'LMDB "{self.source}" is cut short: data.mdb has {size} of {needed} bytes; copy or make it again'
                ) from problem
        self.seek(0)

    def _check_not_overtaken(self) -> None:
        with self._errors_named():
            overtaken = self._reader.is_overtaken()
        if overtaken:
            raise DataError(
                f'another process has written to the LMDB "{self.source}", which is read without its lock, so that '
                f"what was read may be damaged: wait until it has ended, or let {LOCK_FILE} be written there"
            )

    def _first(self) -> bool:
        return self._cursor.first()

    def _next(self) -> bool:
        return self._cursor.next()

    def _item(self) -> Record:
        return self._cursor.item()

    def _all(self) -> Iterator[Record]:
        cursor = Cursor(self._file, self._snapshot)
        more = cursor.first()
        while more:
            yield cursor.item()
            more = cursor.next()
        self._check_not_overtaken()


def _host() -> str:
    """An identifier that all processes of a host have in common, those in containers too, and no other host has."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except OSError:  # not Linux
        return socket.gethostname()


class LmdbWriter(Writer):
    """Writes the records of a new LMDB, a transaction of many at a time."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        # Nobody else knows the folder yet, so neither a lock nor a sync at every commit is needed.
        self._environment = lmdb.open(folder, map_size=FIRST_MAP_SIZE, lock=False, sync=False, metasync=False)
        self._pending: list[Record] = []

    def _put(self, key: bytes, value: bytes) -> None:
        self._pending.append((key, value))
        if len(self._pending) == COMMIT_INTERVAL:
            self._commit()

    def finish(self) -> None:
        self._commit()
        self._environment.sync(True)

    def close(self) -> None:
        self._environment.close()

    def _commit(self) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in self._pending:
                        if not transaction.put(key, value, overwrite=False):
                            raise DataError(f"two records have the key {key!r}")
                self._pending.clear()
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(self._environment.info()["map_size"] * 2)


@contextlib.contextmanager
def new_lmdb(path: str) -> Iterator[Writer]:
    """The writer of the LMDB folder `path`, for the body to put records into.

    The folder appears complete when the body is done, or not at all. A target that exists already, other than an empty
    folder, is refused.
    """
    with (
        new_folder(path, "LMDB", lmdb.Error) as temporary,
        contextlib.closing(LmdbWriter(temporary)) as writer,
    ):
        yield writer
        writer.finish()
        if writer.count == 0:
            raise DataError(f'no records for the LMDB "{path}"')


def write_lmdb(path: str, records: Iterable[Record]) -> int:
    """Make the LMDB folder `path`, as `new_lmdb` does, from (key, value) records and return their number."""
    with new_lmdb(path) as writer:
        for key, value in records:
            writer.put(key, value)
    return writer.count
