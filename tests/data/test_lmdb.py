import sys
from pathlib import Path

import lmdb
import pytest

from fcaffe.data import db_lmdb, lmdb_library, open_database, write_lmdb
from fcaffe.data.backends import LMDB
from tests.data.test_database import INTEROP, numbered, refused

GRAY = INTEROP / "gray_lmdb"


def test_an_empty_lmdb(tmp_path):
    lmdb.open(str(tmp_path / "empty"), lock=False).close()
    refused(tmp_path / "empty", "holds no records", backend=LMDB)


@pytest.mark.parametrize("content", [b"", b"ab", b"x" * 20000])
def test_a_file_that_is_no_lmdb(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)
    refused(tmp_path, "cannot be read", "damaged or of another kind", backend=LMDB)


def test_damaged_pages(tmp_path):
    content = bytearray(Path(GRAY, "data.mdb").read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    (tmp_path / "data.mdb").write_bytes(content)
    refused(tmp_path, "cannot be read", backend=LMDB)


def test_the_map_grows_while_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(db_lmdb, "FIRST_MAP_SIZE", 1 << 16)
    assert write_lmdb(str(tmp_path / "db"), numbered(350, size=3000)) == 350
    records = open_database(str(tmp_path / "db"), LMDB).read(350)
    assert records == list(numbered(350, size=3000))


def test_what_is_written_reads_with_plain_lmdb(tmp_path):
    write_lmdb(str(tmp_path / "db"), numbered(3))
    with lmdb.open(str(tmp_path / "db"), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert transaction.get(b"00000001") == b"\1" * 8


def test_no_module_says_that_it_lies_in_a_descriptor() -> None:
    """Tools such as hypothesis read the files of all modules, and would wait for a pipe that has the descriptor now."""
    assert lmdb_library.library() is not lmdb
    assert not [name for name, module in sys.modules.items() if "/fd/" in (getattr(module, "__file__", "") or "")]
