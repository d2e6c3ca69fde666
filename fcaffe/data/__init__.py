"""Records: databases and files, conversion to arrays, and batches that are read ahead."""

from fcaffe.data.backends import open_database, write_leveldb, write_lmdb
from fcaffe.data.database import Database
from fcaffe.data.datum import array_to_datum, datum_to_array, parse_datum
from fcaffe.data.prefetch import Batch, BatchSource, Prefetcher
from fcaffe.data.transformer import Transformer

__all__ = [
    "Batch",
    "BatchSource",
    "Database",
    "Prefetcher",
    "Transformer",
    "array_to_datum",
    "datum_to_array",
    "open_database",
    "parse_datum",
    "write_leveldb",
    "write_lmdb",
]
