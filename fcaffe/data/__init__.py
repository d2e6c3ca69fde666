"""Records: databases and files, conversion to arrays, and batches that are read ahead."""

from fcaffe.data.backends import open_database, write_leveldb, write_lmdb
from fcaffe.data.datum import array_to_datum, datum_to_array, parse_datum

__all__ = ["array_to_datum", "datum_to_array", "open_database", "parse_datum", "write_leveldb", "write_lmdb"]
