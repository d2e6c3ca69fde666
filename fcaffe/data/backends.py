"""Which kind of database: what `data_param.backend` and a script's --backend name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from fcaffe import log
from fcaffe.data.database import Database, Record, Writer, kinds
from fcaffe.data.db_leveldb import LevelDb, new_leveldb, write_leveldb
from fcaffe.data.db_lmdb import Lmdb, new_lmdb, write_lmdb
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb

Backend = pb.DataParameter.DB
LEVELDB, LMDB = Backend.Value("LEVELDB"), Backend.Value("LMDB")

WRITERS: dict[str, Callable[[str, Iterable[Record]], int]] = {"lmdb": write_lmdb, "leveldb": write_leveldb}

_NEW: dict[str, Callable[[str], AbstractContextManager[Writer]]] = {"lmdb": new_lmdb, "leveldb": new_leveldb}


@contextmanager
def new_database(path: str, backend: str) -> Iterator[Writer]:
    """The writer of a new database of the kind `backend` (lmdb, leveldb), which appears whole or not at all."""
    if backend not in _NEW:
        raise DataError(f'unknown kind of database "{backend}": give {" or ".join(_NEW)}')
    with _NEW[backend](path) as writer:
        (log.opened_lmdb if backend == "lmdb" else log.opened_leveldb)(path)
        yield writer


def open_database(source: str, backend: int | None = None) -> Database:
    """The database in the folder `source`, which must be of the kind `backend` (None: of any)."""
    if not source:
        raise DataError("data_param.source is missing: name the folder of the database")
    for kind in kinds:
        if kind.recognises(source):
            if None not in (backend, kind.backend) and backend != kind.backend:
                named = Backend.Name(backend) + (" (the default)" if backend == LEVELDB else "")
                raise DataError(
                    f'"{source}" is a database of the kind {kind.kind}, but data_param.backend is {named}: write '
                    f"backend: {Backend.Name(kind.backend)}"
                )
            return kind(source)
    return LevelDb(source) if backend == LEVELDB else Lmdb(source)
