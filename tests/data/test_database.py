"""What holds for every kind of database; see test_lmdb.py and test_leveldb.py for the rest."""

import functools
import hashlib
import json
import os
import shutil
import stat

import numpy as np
import pytest

from fcaffe.data import array_to_datum, datum_to_array, open_database, parse_datum
from fcaffe.data.backends import LEVELDB, LMDB, write_database
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from tests.conftest import GOLDEN

INTEROP = GOLDEN / "interop"
BACKENDS = {"lmdb": LMDB, "leveldb": LEVELDB}


@pytest.fixture(params=BACKENDS)
def kind(request):
    if request.param == "leveldb":
        pytest.importorskip("plyvel", reason="the leveldb extra (plyvel) is not installed")
    return request.param


@pytest.fixture
def write(kind):
    return functools.partial(write_database, backend=kind)


@pytest.fixture
def opened(kind):
    return lambda path: open_database(str(path), BACKENDS[kind])


def numbered(count, size=8):
    for index in range(count):
        yield b"%08d" % index, bytes([index % 256]) * size


@pytest.mark.parametrize("name", ["gray_lmdb", "colour_png_lmdb", "gray_leveldb", "colour_jpg_leveldb"])
def test_reads_the_records_that_convert_imageset_wrote(name):
    if "leveldb" in name:
        pytest.importorskip("plyvel", reason="the leveldb extra (plyvel) is not installed")
    expected = json.loads((INTEROP / "records.json").read_text())[name]
    database = open_database(str(INTEROP / name))
    assert database.entries == len(expected)
    for (key, value), record in zip(database.read(len(expected)), expected, strict=True):
        datum = pb.Datum.FromString(value)
        assert key.decode() == record["key"]
        assert (datum.label, datum.encoded, len(datum.data)) == (record["label"], record["encoded"], record["bytes"])
        assert hashlib.sha256(datum.data).hexdigest() == record["sha256"]
    database.close()


def test_what_is_written_is_read(write, opened, tmp_path):
    assert write(str(tmp_path / "a" / "b" / "db"), numbered(2500, 100)) == 2500
    database = opened(tmp_path / "a" / "b" / "db")
    assert list(database) == database.read(2500) == list(numbered(2500, 100))
    assert database.entries == 2500


def test_starts_again_after_the_last_record_and_says_so(write, opened, tmp_path, capfd):
    write(str(tmp_path / "db"), numbered(5))
    database = opened(tmp_path / "db")
    keys = [int(key) for key, _ in database.read(4)]
    assert "Restarting" not in capfd.readouterr().err
    keys += [int(key) for key, _ in database.read(8)]
    assert keys == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert database.position == 12
    assert capfd.readouterr().err.count("Restarting data prefetching from start.") == 2


@pytest.mark.parametrize("position", [0, 3, 5, 13])
def test_seek_continues_as_if_so_many_had_been_read(write, opened, tmp_path, position):
    write(str(tmp_path / "db"), numbered(5))
    database = opened(tmp_path / "db")
    database.read(2)
    database.seek(position)
    assert database.position == position
    assert int(database.peek()[0]) == position % 5
    assert [int(key) for key, _ in database.read(3)] == [(position + step) % 5 for step in range(3)]


def test_reading_changes_nothing_and_works_in_a_read_only_folder(write, opened, tmp_path):
    folder = tmp_path / "db"
    write(str(folder), numbered(5))
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    for path in (*folder.iterdir(), folder):
        os.chmod(path, stat.S_IMODE(path.stat().st_mode) & 0o555)
    try:
        database = opened(folder)
        assert len(database.read(7)) == 7
        database.close()
        assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
    finally:
        os.chmod(folder, 0o755)


def test_writing_refuses_what_is_there_but_takes_an_empty_folder(write, opened, tmp_path):
    target = tmp_path / "db"
    target.mkdir()
    assert write(str(target), numbered(2)) == 2
    with pytest.raises(DataError, match="exists already"):
        write(str(target), numbered(2))
    with pytest.raises(DataError, match="exists already"):
        write(str(next(target.iterdir())), numbered(2))
    assert len(opened(target).read(2)) == 2


def test_a_failed_write_leaves_nothing(write, tmp_path):
    def broken():
        yield from numbered(3)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write(str(tmp_path / "db"), broken())
    for keys in (b"aa", b"aba", b"bab"):
        with pytest.raises(DataError, match="two records have the key"):
            write(str(tmp_path / "db"), [(bytes([key]), b"1") for key in keys])
    with pytest.raises(DataError, match="no records"):
        write(str(tmp_path / "db"), [])
    assert os.listdir(tmp_path) == []


def test_keys_may_come_in_any_order(write, opened, tmp_path):
    write(str(tmp_path / "db"), [(bytes([key]), b"1") for key in b"cab"])
    assert [key for key, _ in opened(tmp_path / "db")] == [b"a", b"b", b"c"]


# --- errors -----------------------------------------------------------------------------------------------------------


def refused(source, *words, backend=None):
    with pytest.raises(DataError) as caught:
        open_database(str(source), backend)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_errors_say_what_and_where_and_what_to_do(kind, tmp_path):
    backend = BACKENDS[kind]
    refused(tmp_path / "none", f'"{tmp_path / "none"}" does not exist', "make it first", backend=backend)
    refused("", "data_param.source is missing", backend=backend)
    shutil.copytree(INTEROP / f"gray_{kind}", tmp_path / "db")
    for file in (tmp_path / "db").iterdir():
        refused(file, "is a file", f'give "{tmp_path / "db"}"', backend=backend)
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "it is not a", backend=backend)


def test_the_wrong_backend_is_named():
    refused(INTEROP / "gray_leveldb", "of the kind LevelDB", "write backend: LEVELDB", backend=LMDB)
    refused(INTEROP / "gray_lmdb", "of the kind LMDB", "LEVELDB (the default)", "write backend: LMDB", backend=LEVELDB)


def test_feature_records_of_extract_features():
    features = np.load(INTEROP / "features.npz")
    for name in ("pool", "sum"):
        database = open_database(str(INTEROP / f"features_{name}_lmdb"))
        records = database.read(database.entries)
        assert records[0][0].decode() == str(features[f"{name}/first_key"])
        assert records[-1][0].decode() == str(features[f"{name}/last_key"])
        arrays = [datum_to_array(parse_datum(key, value), key) for key, value in records]
        assert arrays[0].shape == tuple(features[f"{name}/datum_shape"])
        assert np.array_equal(np.stack([array.ravel() for array in arrays]), features[name])
        assert array_to_datum(arrays[0]).SerializeToString() == records[0][1]
