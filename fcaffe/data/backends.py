"""Opens and writes databases of the kinds that `data_param.backend` and --backend name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator

from fcaffe import log
from fcaffe.data.database import Database, Record, Writer, kinds, new_folder
from fcaffe.data.db_leveldb import LevelDb, LevelDbWriter
from fcaffe.data.db_lmdb import Lmdb, LmdbWriter
from fcaffe.errors import DataError
from fcaffe.output_files import reason_and_remedy
from fcaffe.proto import caffe_pb2 as pb

Backend = pb.DataParameter.DB
LEVELDB, LMDB = Backend.Value("LEVELDB"), Backend.Value("LMDB")

WRITERS: dict[str, type[LmdbWriter] | type[LevelDbWriter]] = {"lmdb": LmdbWriter, "leveldb": LevelDbWriter}


@contextlib.contextmanager
def new_database(path: str, backend: str) -> Iterator[Writer]:
    """Yields the writer of the new database `path`, which appears complete at the end or not at all.

    Args:
        path: the folder. It must not exist, other than as an empty folder.
        backend: lmdb or leveldb.

    Raises:
        DataError: the folder exists or cannot be written, there are no records, or two have the same key.
    """
    if backend not in WRITERS:
        raise DataError(f'unknown kind of database "{backend}": give {" or ".join(WRITERS)}')
    kind = WRITERS[backend].kind
    with new_folder(path, kind) as temporary, contextlib.closing(WRITERS[backend](temporary)) as writer:
        (log.opened_lmdb if backend == "lmdb" else log.opened_leveldb)(path)
        try:
            yield writer
            writer.finish()
        except writer.problems as problem:
            raise DataError(f'cannot write the {kind} "{path}": {reason_and_remedy(problem, path)}') from problem
        if writer.count == 0:
            raise DataError(f'no records for the {kind} "{path}"')


def write_database(path: str, records: Iterable[Record], backend: str) -> int:
    """Write (key, value) records to the new database `path`, and return their number. See `new_database`."""
    with new_database(path, backend) as writer:
        for key, value in records:
            writer.put(key, value)
        return writer.count


write_lmdb = functools.partial(write_database, backend="lmdb")
write_leveldb = functools.partial(write_database, backend="leveldb")


def open_database(source: str, backend: int | None = None) -> Database:
    """Open the database in the folder `source`. Raises DataError if it is not of the kind `backend` (None: any)."""
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
