import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from fcaffe.data import Database, array_to_datum, open_database, write_lmdb
from fcaffe.data import database as database_module
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb

GOLDEN = Path(__file__).parents[1] / "golden"
GRAY = str(GOLDEN / "interop" / "gray_lmdb")


def numbered(count, size=8):
    for index in range(count):
        yield b"%08d" % index, bytes([index % 256]) * size


@pytest.mark.parametrize("name", ["gray_lmdb", "colour_png_lmdb"])
def test_reads_the_records_that_convert_imageset_wrote(name):
    expected = json.loads((GOLDEN / "interop" / "records.json").read_text())[name]
    database = Database(str(GOLDEN / "interop" / name))
    assert database.entries == len(expected)
    for (key, value), record in zip(database.read(len(expected)), expected, strict=True):
        datum = pb.Datum.FromString(value)
        assert key.decode() == record["key"]
        assert (datum.label, datum.encoded, len(datum.data)) == (record["label"], record["encoded"], record["bytes"])
        assert hashlib.sha256(datum.data).hexdigest() == record["sha256"]


def test_starts_again_after_the_last_record_and_says_so(tmp_path, capfd):
    write_lmdb(str(tmp_path / "db"), numbered(5))
    database = Database(str(tmp_path / "db"))
    keys = [int(key) for key, _ in database.read(4)]
    assert "Restarting" not in capfd.readouterr().err
    keys += [int(key) for key, _ in database.read(8)]
    assert keys == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert database.position == 12
    assert capfd.readouterr().err.count("Restarting data prefetching from start.") == 2


@pytest.mark.parametrize("position", [0, 3, 5, 13])
def test_seek_continues_as_if_so_many_had_been_read(tmp_path, position):
    write_lmdb(str(tmp_path / "db"), numbered(5))
    database = Database(str(tmp_path / "db"))
    database.read(2)
    database.seek(position)
    assert database.position == position
    assert int(database.peek()[0]) == position % 5
    assert [int(key) for key, _ in database.read(3)] == [(position + step) % 5 for step in range(3)]


def test_two_readers_of_one_folder_go_their_own_ways():
    first, second = Database(GRAY), Database(GRAY)
    assert first.read(3) == second.read(3)
    first.close()
    assert second.read(1)[0][0].startswith(b"00000003")
    second.close()
    assert Database(GRAY).read(1)[0][0].startswith(b"00000000")


def refused(source, *words, backend=pb.DataParameter.LMDB):
    with pytest.raises(DataError) as caught:
        open_database(str(source), backend)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_errors_say_what_and_where_and_what_to_do(tmp_path):
    refused(tmp_path / "none", f'"{tmp_path / "none"}" does not exist', "make it first")
    refused("", "data_param.source is missing")
    refused(f"{GRAY}/data.mdb", "is a file", f'give "{GRAY}"')
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "has no data.mdb", "not an LMDB")
    refused(GOLDEN / "interop" / "gray_leveldb", "has no data.mdb", "looks like a LevelDB")
    refused(GOLDEN / "interop" / "gray_leveldb", "LEVELDB (the default)", backend=pb.DataParameter.LEVELDB)
    refused(GRAY, "is an LMDB", "write backend: LMDB", backend=pb.DataParameter.LEVELDB)
    lmdb.open(str(tmp_path / "empty"), lock=False).close()
    refused(tmp_path / "empty", "holds no records")


@pytest.mark.parametrize("content", [b"", b"ab", b"x" * 20000])
def test_a_file_that_is_no_lmdb(tmp_path, content):
    (tmp_path / "data.mdb").write_bytes(content)
    refused(tmp_path, "cannot be read", "damaged or not an LMDB")


def test_a_file_cut_short_is_an_error_and_not_the_end_of_the_process(tmp_path):
    content = Path(GRAY, "data.mdb").read_bytes()
    (tmp_path / "data.mdb").write_bytes(content[: len(content) // 2])
    refused(tmp_path, "is cut short", f"{len(content) // 2} of {len(content)} bytes")


def test_damaged_pages(tmp_path):
    content = bytearray(Path(GRAY, "data.mdb").read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    (tmp_path / "data.mdb").write_bytes(content)
    refused(tmp_path, "cannot be read")


def test_reads_a_read_only_folder(tmp_path):
    shutil.copytree(GRAY, tmp_path / "db")
    os.chmod(tmp_path / "db", 0o555)
    try:
        assert Database(str(tmp_path / "db")).entries == 64
        assert os.listdir(tmp_path / "db") == ["data.mdb"]
    finally:
        os.chmod(tmp_path / "db", 0o755)


def test_the_map_grows_while_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(database_module, "FIRST_MAP_SIZE", 1 << 16)
    monkeypatch.setattr(database_module, "COMMIT_INTERVAL", 100)
    assert write_lmdb(str(tmp_path / "db"), numbered(350, size=3000)) == 350
    records = Database(str(tmp_path / "db")).read(350)
    assert records == list(numbered(350, size=3000))


def test_what_is_written_reads_with_plain_lmdb(tmp_path):
    write_lmdb(str(tmp_path / "db"), numbered(3))
    with lmdb.open(str(tmp_path / "db"), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert transaction.get(b"00000001") == b"\1" * 8


def test_writing_refuses_what_is_there_but_takes_an_empty_folder(tmp_path):
    target = tmp_path / "db"
    target.mkdir()
    assert write_lmdb(str(target), numbered(2)) == 2
    with pytest.raises(DataError, match="exists already"):
        write_lmdb(str(target), numbered(2))
    with pytest.raises(DataError, match="exists already"):
        write_lmdb(str(target / "data.mdb"), numbered(2))
    assert len(Database(str(target)).read(2)) == 2


def test_a_failed_write_leaves_nothing(tmp_path):
    def broken():
        yield from numbered(3)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_lmdb(str(tmp_path / "db"), broken())
    with pytest.raises(DataError, match="two records have the key"):
        write_lmdb(str(tmp_path / "db"), [(b"a", b"1"), (b"a", b"2")])
    with pytest.raises(DataError, match="no records"):
        write_lmdb(str(tmp_path / "db"), [])
    assert os.listdir(tmp_path) == []


def test_makes_the_folders_on_the_way(tmp_path):
    write_lmdb(str(tmp_path / "a" / "b" / "db"), numbered(1))
    assert Database(str(tmp_path / "a" / "b" / "db")).entries == 1


def test_a_process_with_an_open_database_ends_cleanly():
    code = f"from fcaffe.data import Database; d = Database({GRAY!r}); d.read(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Opened lmdb" in done.stderr
    assert "Traceback" not in done.stderr


def test_feature_records_of_extract_features():
    features = np.load(GOLDEN / "interop" / "features.npz")
    from fcaffe.data import datum_to_array, parse_datum

    for name in ("pool", "sum"):
        database = Database(str(GOLDEN / "interop" / f"features_{name}_lmdb"))
        records = database.read(database.entries)
        assert records[0][0].decode() == str(features[f"{name}/first_key"])
        assert records[-1][0].decode() == str(features[f"{name}/last_key"])
        arrays = [datum_to_array(parse_datum(key, value), key) for key, value in records]
        assert arrays[0].shape == tuple(features[f"{name}/datum_shape"])
        assert np.array_equal(np.stack([array.ravel() for array in arrays]), features[name])
        assert array_to_datum(arrays[0]).SerializeToString() == records[0][1]
