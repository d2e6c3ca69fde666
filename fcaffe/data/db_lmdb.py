"""LMDB folders, read and written by liblmdb."""

from __future__ import annotations

import mmap
import os
import subprocess

from fcaffe import log
from fcaffe.data import lmdb_library
from fcaffe.data.database import Database, Record, Writer, register_database
from fcaffe.data.lmdb_library import library
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.python_path import python

FIRST_MAP_SIZE = 64 << 20

# Reads a byte at the end of each value, the last records first. A missing page ends this process by SIGBUS.
PROBE = """
import lmdb, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with lmdb.open(sys.argv[1], readonly=True, lock=False) as environment, environment.begin(buffers=True) as transaction:
    for _, value in transaction.cursor().iterprev():
        bytes(value[-1:])
"""


@register_database
class Lmdb(Database):
    """An LMDB folder, as it was when it was opened. Records that other processes write later are not read."""

    kind = "LMDB"
    backend = pb.DataParameter.LMDB

    @classmethod
    def recognises(cls, folder: str) -> bool:
        return os.path.isfile(os.path.join(folder, "data.mdb"))

    def __init__(self, source: str) -> None:
        super().__init__(source)
        if not self.recognises(source):
            raise DataError(f'folder "{source}" has no data.mdb: it is not an LMDB')
        self.problems = (library().Error, OSError)
        path = os.path.join(source, "data.mdb")
        with self._errors_named():
            if os.path.getsize(path) < 2 * mmap.PAGESIZE:
                raise OSError("data.mdb is shorter than its two meta pages")
            self._environment, self._transaction = lmdb_library.begin(source)
            needed = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
            size = os.path.getsize(path)
        if size < needed and (size % mmap.PAGESIZE or _lacks_pages(source)):
            raise DataError(
                f'LMDB "{source}" is cut short: data.mdb has {size} of {needed} bytes; copy or make it again'
            )
        self._cursor = self._transaction.cursor()
        self.seek(0)
        log.opened_lmdb(source)

    @property
    def entries(self) -> int:
        with self._errors_named():
            return self._transaction.stat()["entries"]

    def version(self) -> int:
        return self.entries

    def close(self) -> None:
        with lmdb_library.environments_lock:  # the last reader closes the environment before another one opens it
            self._transaction.abort()
            self._environment = None

    def _first(self) -> bool:
        self._index = 0
        return self._cursor.first()

    def _next(self) -> bool:
        self._index += 1
        if self._cursor.next():
            return True
        if self._index != self.entries:
            raise OSError(f"it holds {self._index} records, but should have {self.entries}")
        return False

    def _item(self) -> Record:
        return self._cursor.item()


def _lacks_pages(folder: str) -> bool:
    """Whether a page that holds records is beyond the end of the file. Free pages at the end may never be written."""
    probe = subprocess.run(python("-c", PROBE, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return probe.returncode != 0


class LmdbWriter(Writer):
    """Writes the records of a new LMDB, a transaction of many at a time."""

    kind = "LMDB"

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.problems = (library().Error,)
        # No other process knows the folder, so neither a lock nor a sync at every commit is needed.
        self._environment = library().open(folder, map_size=FIRST_MAP_SIZE, lock=False, sync=False, metasync=False)

    def put(self, key: bytes, value: bytes) -> None:
        if not 0 < len(key) <= self._environment.max_key_size():
            raise DataError(
                f"an LMDB takes keys of 1 to {self._environment.max_key_size()} bytes, and that of "
                f'"{key.decode(errors="replace")}" has {len(key)}: shorten its path, or write a LevelDB'
            )
        super().put(key, value)

    def _write(self, records: list[Record]) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in records:
                        if not transaction.put(key, value, overwrite=False):
                            raise DataError(f"two records have the key {key!r}")
                return
            except library().MapFullError:
                self._environment.set_mapsize(self._environment.info()["map_size"] * 2)

    def finish(self) -> None:
        super().finish()
        self._environment.sync(True)

    def close(self) -> None:
        self._environment.close()
