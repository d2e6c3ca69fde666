import os
import shutil
import sys
import tempfile

import pytest

from fcaffe.data import db_leveldb, open_database, write_leveldb
from fcaffe.data.backends import LEVELDB
from fcaffe.errors import DataError
from tests.data.test_database import INTEROP, numbered, refused


def test_without_plyvel_the_error_names_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plyvel", None)
    words = "pip install plyvel", "Python up to 3.12", "scripts/data/copy_database"
    refused(INTEROP / "gray_leveldb", *words, backend=LEVELDB)
    with pytest.raises(DataError, match=r"Python up to 3\.12"):
        write_leveldb(str(tmp_path / "db"), numbered(1))


class TestWithPlyvel:
    @pytest.fixture(autouse=True)
    def plyvel(self):
        return pytest.importorskip("plyvel", reason="the leveldb extra (plyvel) is not installed")

    def test_what_is_written_reads_with_plain_leveldb_and_lies_in_tables(self, plyvel, tmp_path):
        write_leveldb(str(tmp_path / "db"), numbered(3))
        assert all(path.stat().st_size == 0 for path in (tmp_path / "db").glob("*.log"))
        db = plyvel.DB(str(tmp_path / "db"))
        assert db.get(b"00000001") == b"\1" * 8
        db.close()

    def test_an_empty_leveldb(self, plyvel, tmp_path):
        plyvel.DB(str(tmp_path), create_if_missing=True).close()
        refused(tmp_path, "holds no records", backend=LEVELDB)

    @pytest.mark.parametrize("name", ["gray_leveldb", "colour_jpg_leveldb"])
    def test_damage_anywhere_is_an_error_or_shortens_the_log(self, name, tmp_path):
        """LevelDB drops the end of a log that is cut short, as what was written last when a machine failed."""
        for file in (INTEROP / name).iterdir():
            content = file.read_bytes()
            for damaged in (b"", b"x" * 100, content[: len(content) // 2], content[:-3], b"\0" + content[1:]):
                folder = tmp_path / "db"
                shutil.copytree(INTEROP / name, folder, dirs_exist_ok=True)
                (folder / file.name).write_bytes(damaged)
                try:
                    database = open_database(str(folder), LEVELDB)
                    assert file.suffix == ".log" or damaged == content
                    assert len(list(database)) <= 64
                    database.close()
                except DataError as problem:
                    assert str(folder) in str(problem) and "\n" not in str(problem)

    def test_a_missing_table_is_an_error(self, tmp_path):
        shutil.copytree(INTEROP / "colour_jpg_leveldb", tmp_path / "db")
        (tmp_path / "db" / "000005.ldb").unlink()
        (tmp_path / "db" / "LOCK").touch()
        refused(tmp_path / "db", "cannot be read", "missing", backend=LEVELDB)

    def test_nothing_is_left_in_the_temporary_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        database = open_database(str(INTEROP / "gray_leveldb"))
        assert len(os.listdir(tmp_path)) == 1
        database.close()
        open_database(str(INTEROP / "gray_leveldb"))  # and dropped
        with pytest.raises(DataError):
            db_leveldb.LevelDb(str(INTEROP / "gray_lmdb"))
        assert os.listdir(tmp_path) == []
