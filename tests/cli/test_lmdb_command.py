"""`fcaffe lmdb`: looking into databases and exporting them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from fcaffe.data import array_to_datum, datum_to_array, parse_datum, write_leveldb, write_lmdb
from tests.cli.conftest import Run, records
from tests.conftest import GOLDEN

pytest.importorskip("cv2")

INTEROP = GOLDEN / "interop"
pytestmark = pytest.mark.usefixtures("in_a_folder")


@pytest.mark.parametrize(
    ("name", "shape", "form"),
    [
        ("gray_lmdb", "1 x 28 x 28", "uint8"),
        ("colour_png_lmdb", "3 x 32 x 32", "PNG files"),
        ("colour_jpg_leveldb", "3 x 32 x 32", "JPEG files"),
    ],
)
def test_what_is_in_a_database(name: str, shape: str, form: str, run: Run) -> None:
    code, out, err = run(f"lmdb info {INTEROP / name}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    kind = "LevelDB" if "leveldb" in name else "LMDB"
    assert lines[0] == f"{kind} {INTEROP / name}" and lines[1] == "Records    64"
    assert lines[3:6] == [
        f"Shapes     {shape}",
        f"Stored as  {form}",
        "Labels     10 from 0 to 9, each of 2 to 10 records",
    ]
    assert lines[7].split() == ["0", "4", "█" * 16]
    first = run(f"lmdb cat {INTEROP / name} --count 2").out.splitlines()
    key = records(INTEROP / name)[0][0].decode()
    assert len(first) == 2 and first[0] == f"{key}  7  {shape}  {form}"


def test_exported_pictures_make_the_same_database(run: Run) -> None:
    assert run(f"lmdb export {INTEROP / 'gray_lmdb'} out").out == "out: 64 pictures\n"
    assert (Path("out/list.txt").read_text()).startswith("00000000_gray_000.png 7\n00000001_gray_001.png 8\n")
    assert run("convert_imageset -gray out/ out/list.txt back").code == 0
    assert [value for _, value in records("back")] == [value for _, value in records(INTEROP / "gray_lmdb")]


def test_picture_files_are_exported_as_they_are(run: Run) -> None:
    source = INTEROP / "colour_jpg_leveldb"
    assert run(f"lmdb export {source} out --count=3").out == "out: 3 pictures\n"
    assert sorted(path.name for path in Path("out").iterdir())[:3] == [f"0000000{i}_colour_00{i}.jpg" for i in range(3)]
    key, value = records(source)[0]
    assert Path("out/00000000_colour_000.jpg").read_bytes() == parse_datum(key, value).data


def test_what_goes_wrong_leaves_nothing(run: Run) -> None:
    good = array_to_datum(np.zeros((1, 2, 2), np.uint8), 3).SerializeToString()
    write_lmdb("db", [(b"0", good), (b"1", b"\xff\xff")])
    assert 'record "1" is not a Datum' in run("lmdb export db out").fatal
    assert 'record "1" is not a Datum' in run("lmdb info db").fatal
    assert sorted(path.name for path in Path().iterdir()) == ["db"]


def test_a_missing_folder_is_named(run: Run) -> None:
    assert "lmdb export takes a database and the name of a new folder, not 1 names" in run("lmdb export db").fatal


def test_progress_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(f"lmdb export {INTEROP / 'gray_lmdb'} made").code == 0
    assert "records" in terminal.getvalue() and "64/64" in terminal.getvalue()


def test_a_leveldb_of_any_keys(run: Run) -> None:
    write_leveldb(
        "db",
        [(bytes([index]), array_to_datum(np.zeros((1, 1, 1), np.uint8)).SerializeToString()) for index in (200, 3)],
    )
    assert run("lmdb cat db").out.splitlines()[0].startswith("\\x03  -  1 x 1 x 1  uint8")
    assert run("lmdb export db out").code == 0
    assert datum_to_array(parse_datum(*records("db")[0])).shape == (1, 1, 1)
