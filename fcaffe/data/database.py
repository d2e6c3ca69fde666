"""Databases of (key, value) records in a folder, which are read cyclically in key order."""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from fcaffe import log
from fcaffe.errors import DataError
from fcaffe.output_files import reason_and_remedy, temporary_folder

Record = tuple[bytes, bytes]  # key, value
BATCH = 100  # records that are written together: few, so that pictures are decoded meanwhile


_readers: dict[int, Database] = {}  # by thread


def being_read() -> str:
    """The database that this thread is reading, for the message after a fatal signal; "" if there is none."""
    database = _readers.get(threading.get_ident())
    return f'{database.kind} "{database.source}"' if database is not None else ""


class Database(ABC):
    """The records of a folder in key order. The first record follows the last.

    `position` counts the records read so far, over all rounds. Reading does not change the folder, which may be on a
    read-only file system. A subclass has a cursor, which `_first` and `_next` move. Raises DataError for a folder that
    is missing, damaged or empty.
    """

    kind: ClassVar[str]  # as Caffe spells it: "LMDB"
    backend: ClassVar[int | None] = None  # required value of `data_param.backend`; None: any
    problems: tuple[type[Exception], ...]  # exceptions of the library

    def __init__(self, source: str) -> None:
        self.source = source
        self.position = 0
        if not os.path.exists(source):
            raise DataError(
                f'{self.kind} "{source}" does not exist (looked for {os.path.abspath(source)}): make it first, or '
                "correct the path, which is relative to the folder that the command runs in"
            )
        if not os.path.isdir(source):
            folder = os.path.dirname(source) or "."
            raise DataError(f'"{source}" is a file; {self.kind} wants the name of the folder: give "{folder}"')

    @classmethod
    @abstractmethod
    def recognises(cls, folder: str) -> bool:
        """Whether the folder holds a database of this kind."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """The number of records."""

    def version(self) -> Any:
        """A value that is the same in all processes that read the same records; None without a fast one."""
        return None

    @abstractmethod
    def _first(self) -> bool:
        """Move to the first record. Returns False if there is none."""

    @abstractmethod
    def _next(self) -> bool:
        """Move to the next record. Returns False at the end."""

    @abstractmethod
    def _item(self) -> Record:
        """The record at the cursor."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. May be called twice."""

    def seek(self, position: int) -> None:
        """Continue as if `position` records had been read."""
        with self._errors_named():
            if not self._first():
                raise DataError(f'{self.kind} "{self.source}" holds no records: fill it, or correct data_param.source')
            if position:
                for _ in range(position % self.entries):
                    self._next()
        self.position = position

    def peek(self) -> Record:
        """The next record, without moving the cursor."""
        with self._errors_named():
            return self._item()

    def read(self, count: int) -> list[Record]:
        """The next `count` records."""
        records = []
        with self._errors_named():
            for _ in range(count):
                records.append(self._item())
                self._next_or_first()
        self.position += count
        return records

    def skip(self, count: int) -> None:
        """Skip `count` records."""
        with self._errors_named():
            for _ in range(count):
                self._next_or_first()
        self.position += count

    def __iter__(self) -> Iterator[Record]:
        """Yields every record once, from the first on. Reading then continues where it was."""
        position = self.position
        self.seek(0)
        with self._errors_named():
            yield self._item()
            while self._next():
                yield self._item()
        self.seek(position)

    def _next_or_first(self) -> None:
        if not self._next():
            log.restarting_prefetch()
            self._first()

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        thread = threading.get_ident()
        _readers[thread] = self
        try:
            yield
        except self.problems as problem:
            reason = " ".join(str(problem).split())
            raise DataError(
                f'{self.kind} "{self.source}" cannot be read ({reason}): it is damaged or of another kind; '
                "copy or create it again"
            ) from problem
        finally:
            _readers.pop(thread, None)


kinds: list[type[Database]] = []
_Kind = TypeVar("_Kind", bound=type[Database])


def register_database(kind: _Kind) -> _Kind:
    """Class decorator: `data_param.source` may name a folder of this kind."""
    kinds.append(kind)
    return kind


class Writer(ABC):
    """Writes the records of a new database, BATCH at a time. `count` is their number so far."""

    kind: ClassVar[str]
    problems: tuple[type[Exception], ...]  # what the library raises

    def __init__(self) -> None:
        self.count = 0
        self._pending: list[Record] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record. Raises DataError, at the latest from `finish`, if there is a record of this key."""
        self._pending.append((key, value))
        self.count += 1
        if len(self._pending) == BATCH:
            self._flush()

    def finish(self) -> None:
        """Write all records that have been added, and complete the files."""
        self._flush()

    def _flush(self) -> None:
        self._write(self._pending)
        self._pending = []

    @abstractmethod
    def _write(self, records: list[Record]) -> None:
        """Write records. Raises DataError if two records have the same key."""

    @abstractmethod
    def close(self) -> None:
        """Close the files, without writing the pending records."""


@contextlib.contextmanager
def new_folder(path: str, kind: str) -> Iterator[str]:
    """Yields a temporary folder to fill, which is renamed to `path` at the end, or removed after an error.

    Raises DataError if `path` exists, other than as an empty folder, or for an OSError of the body.
    """
    path = os.path.normpath(path)
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise DataError(f'"{path}" exists already: delete it or name another folder')
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with temporary_folder(path) as temporary:
            yield temporary
            os.rename(temporary, path)
    except OSError as problem:
        raise DataError(f'cannot write the {kind} "{path}": {reason_and_remedy(problem, path)}') from problem
