"""LevelDB folders, read and written by the optional package plyvel."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from typing import Any

from fcaffe import log
from fcaffe.data.database import Database, Record, Writer, register_database
from fcaffe.errors import DataError
from fcaffe.output_files import temporary_folder
from fcaffe.proto import caffe_pb2 as pb

PREFIX = "fcaffe-leveldb"  # of temporary folders
OPTIONS = {"write_buffer_size": 256 << 20, "block_size": 64 << 10, "max_open_files": 100}  # Caffe's


def plyvel() -> Any:
    """The plyvel module. Raises DataError, which says what to install, if it is missing."""
    try:
        import plyvel
    except ImportError as problem:
        raise DataError(
            "LevelDB databases need plyvel, which pip has for Python up to 3.12: pip install plyvel, or "
            "copy the records there into an LMDB (scripts/data/copy_database SOURCE OUT) and write backend: LMDB"
        ) from problem
    return plyvel


@register_database
class LevelDb(Database):
    """A LevelDB folder.

    LevelDB writes into the folder that it opens: a lock, logs, and tables of records from the last log. So it opens a
    temporary folder with links to the tables, and `source` does not change. The next process that opens a LevelDB
    removes the temporary folders of killed processes.
    """

    kind = "LevelDB"
    backend = pb.DataParameter.LEVELDB

    @classmethod
    def recognises(cls, folder: str) -> bool:
        return os.path.isfile(os.path.join(folder, "CURRENT"))

    def __init__(self, source: str) -> None:
        super().__init__(source)
        if not self.recognises(source):
            raise DataError(f'folder "{source}" has no file CURRENT: it is not a LevelDB')
        library = plyvel()
        self.problems = (library.Error, OSError)
        self._entries: int | None = None
        with self._errors_named(), contextlib.ExitStack() as opened:
            folder = opened.enter_context(temporary_folder(os.path.join(tempfile.gettempdir(), PREFIX), 0o700))
            _link(source, folder)
            self._db = library.DB(folder, create_if_missing=False, paranoid_checks=True, **OPTIONS)
            opened.callback(self._db.close)
            self._cursor = self._db.raw_iterator(verify_checksums=True)
            opened.callback(self._cursor.close)  # plyvel complains of cursors that outlive their database
            self._end = weakref.finalize(self, opened.pop_all().close)
        self.seek(0)
        log.opened_leveldb(source)

    @property
    def entries(self) -> int:
        """The number of records. Reads all keys."""
        if self._entries is None:
            with self._errors_named(), self._db.iterator(include_value=False, verify_checksums=True) as keys:
                self._entries = sum(1 for _ in keys)
        return self._entries

    def close(self) -> None:
        self._end()

    def _first(self) -> bool:
        self._cursor.seek_to_first()
        return self._cursor.valid()

    def _next(self) -> bool:
        self._cursor.next()
        return self._cursor.valid()

    def _item(self) -> Record:
        return self._cursor.item()


def _link(source: str, folder: str) -> None:
    """Make `folder` a LevelDB with the content of `source`, so that LevelDB's writes do not change `source`.

    LevelDB names new tables .ldb and also reads .sst. So links with that ending never have the name of a new table.
    """
    for name in os.listdir(source):
        path = os.path.join(os.path.abspath(source), name)
        stem, extension = os.path.splitext(name)
        if name == "CURRENT" or name.startswith("MANIFEST-"):
            shutil.copyfile(path, os.path.join(folder, name))
        elif extension == ".log":
            os.symlink(path, os.path.join(folder, name))
        elif extension in (".ldb", ".sst"):
            os.symlink(path, os.path.join(folder, f"{stem}.sst"))


class LevelDbWriter(Writer):
    """Writes the records of a new LevelDB, many at a time."""

    kind = "LevelDB"

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.problems = (plyvel().Error,)
        self._folder = folder
        self._db = plyvel().DB(folder, create_if_missing=True, **OPTIONS)
        self._highest = b""  # key so far; a higher one is new

    def _write(self, records: list[Record]) -> None:
        with self._db.write_batch() as batch:
            keys = set[bytes]()
            for key, value in records:
                if key <= self._highest and (key in keys or self._db.get(key) is not None):
                    raise DataError(f"two records have the key {key!r}")
                batch.put(key, value)
                keys.add(key)
                self._highest = max(key, self._highest)

    def finish(self) -> None:
        super().finish()
        self._db.close()
        plyvel().DB(self._folder).close()  # moves the log into a table, so that readers need not

    def close(self) -> None:
        self._db.close()
