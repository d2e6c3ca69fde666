"""Caffe's tools as commands: convert_imageset, compute_image_mean, extract_features, upgrade_*."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format

from fcaffe.cli.commands import COMMANDS
from fcaffe.data import datum_to_array, parse_datum
from fcaffe.data.images import encode_image
from fcaffe.interruption import PROGRAMS
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.text import read_text
from fcaffe.proto.upgrade import upgrade_net
from tests.cli.conftest import Run, records
from tests.cli.test_golden_logs import assert_same, lines_of
from tests.conftest import GOLDEN

pytest.importorskip("cv2")

INTEROP = GOLDEN / "interop"
LOGS = GOLDEN / "logs"
pytestmark = pytest.mark.usefixtures("in_a_folder")
Records = list[tuple[bytes, bytes]]


def golden_records(name: str, folder: Path) -> Records:
    """Those of a golden database, of which a copy is read, since opening may write."""
    return records(shutil.copytree(INTEROP / name, folder / f"golden_{name}"))


def pictures_of(found: Records) -> Iterator[tuple[str, int, bytes]]:
    """(path, label, PNG) of each record, as Caffe was given them."""
    for key, value in found:
        datum = parse_datum(key, value)
        content = datum.data if datum.encoded else encode_image(datum_to_array(datum), "png")
        yield key.decode()[9:], datum.label, content


def write_pictures(found: Records) -> None:
    """The pictures of a database into the folder `from`, with `list.txt`."""
    lines = []
    for path, label, content in pictures_of(found):
        (Path("from") / path).parent.mkdir(parents=True, exist_ok=True)
        (Path("from") / path).write_bytes(content)
        lines.append(f"{path} {label}\n")
    Path("list.txt").write_text("".join(lines))


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_pixels_are_stored_as_caffe_stores_them(backend: str, run: Run, tmp_path: Path) -> None:
    expected = golden_records(f"gray_{backend}", tmp_path)
    write_pictures(expected)
    assert run(f"convert_imageset --gray --backend={backend} from/ list.txt made").code == 0
    assert records("made") == expected


def test_picture_files_are_stored_as_they_are(run: Run, tmp_path: Path) -> None:
    expected = golden_records("colour_png_lmdb", tmp_path)
    write_pictures(expected)
    assert run("convert_imageset -encoded from/ list.txt made").code == 0
    assert records("made") == expected
    result = run("convert_imageset -encode_type png from/ list.txt again")
    assert "encode_type specified, assuming encoded=true." in result.messages
    assert records("again") == expected


def test_resized_pictures(run: Run) -> None:
    write_pictures(records(INTEROP / "gray_lmdb")[:3])
    assert run("convert_imageset -resize_height 14 -resize_width 20 from/ list.txt made").code == 0
    assert datum_to_array(parse_datum(*records("made")[0])).shape == (3, 14, 20)
    assert run("convert_imageset -encoded -resize_height 14 -resize_width 20 from/ list.txt png").code == 0
    assert datum_to_array(parse_datum(*records("png")[0])).shape == (3, 14, 20)
    result = run("convert_imageset -resize_height 14 from/ list.txt own")
    assert "pictures keep their sizes" in result.err
    assert datum_to_array(parse_datum(*records("own")[0])).shape == (3, 28, 28)


def test_the_log_of_the_tools(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(records(INTEROP / "gray_lmdb")[:9])
    shutil.move("from", "gray")
    shutil.copy("list.txt", "gray.txt")

    def golden_with_value(value: str) -> str:
        return (LOGS / "compute_image_mean.log").read_text().replace("39.2903", value)

    capsys.readouterr()
    made = run("convert_imageset --gray --shuffle gray/ gray.txt some_lmdb").err
    assert_same(lines_of(made), lines_of((LOGS / "convert_imageset.log").read_text()))
    mean = np.mean([datum_to_array(parse_datum(*record)) for record in records("some_lmdb")])
    capsys.readouterr()
    made = run("compute_image_mean some_lmdb mean.binaryproto").err
    assert_same(lines_of(made), lines_of(golden_with_value(f"{mean:.6g}")))
    tags = [re.findall(r"([\w.]+:\d+)\] ", text) for text in (made, golden_with_value(""))]
    assert [tag for tag in tags[0] if ".py:" not in tag] == tags[1]


def test_a_shuffled_database_has_the_same_pictures(run: Run) -> None:
    write_pictures(records(INTEROP / "gray_lmdb"))
    assert run("convert_imageset --gray --shuffle from/ list.txt made").code == 0
    made, given = list(pictures_of(records("made"))), list(pictures_of(records(INTEROP / "gray_lmdb")))
    assert made != given and sorted(made) == sorted(given)
    assert [key[:9] for key, _ in records("made")] == [b"%08d_" % index for index in range(64)]


def test_pictures_that_cannot_be_read_are_told_and_passed_over(run: Run) -> None:
    write_pictures(records(INTEROP / "gray_lmdb")[:3])
    Path("from/gray/001.png").write_bytes(b"no picture")
    result = run("convert_imageset --gray from/ list.txt made")
    assert result.code == 0
    assert "Could not open or find file from/gray/001.png" in result.messages
    assert result.messages[-2] == "Processed 2 files." and result.messages[-1].startswith("1 of 3 pictures skipped")
    assert [key for key, _ in records("made")] == [b"00000000_gray/000.png", b"00000002_gray/002.png"]
    assert "give the folder with a / at its end" in run("convert_imageset from list.txt none").fatal
    assert not Path("none").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("from/ none.txt made", 'cannot read the list of images "none.txt"'),
        ("-backend hdf5 from/ list.txt made", 'unknown kind of database "hdf5": give lmdb or leveldb'),
        ("-check_size from/ list.txt made", '"from/gray/002.png" is 3 x 5 x 28 (channels x height x width)'),
        ("-encode_type xyz from/ list.txt made", 'cannot encode a picture as "xyz"'),
    ],
)
def test_what_is_wrong_with_the_pictures(words: str, message: str, run: Run) -> None:
    write_pictures(records(INTEROP / "gray_lmdb")[:3])
    Path("from/gray/002.png").write_bytes(encode_image(np.zeros((1, 5, 28), np.uint8), "png"))
    assert run("convert_imageset " + words).fatal.startswith(message)
    assert not Path("made").exists()


@pytest.mark.parametrize("kind", ["gray", "colour"])
def test_the_mean_image_is_caffes(kind: str, run: Run) -> None:
    source = INTEROP / ("gray_lmdb" if kind == "gray" else "colour_jpg_leveldb")
    result = run(f"compute_image_mean {source} mean")
    assert Path("mean").read_bytes() == (INTEROP / f"mean_{kind}.binaryproto").read_bytes()
    assert ("Decoding Datum" in result.messages) == (kind == "colour")
    assert f"Number of channels: {1 if kind == 'gray' else 3}" in result.messages
    again = run(f"compute_image_mean {source}")
    assert result.messages[-1] == again.messages[-1] and not any("Write to" in line for line in again.messages)


def test_features_are_caffes(run: Run) -> None:
    shutil.copytree(INTEROP, "interop")
    files = "interop/model_iter_8.caffemodel interop/net.prototxt"
    net = Path("interop/net.prototxt")
    text = re.sub(r'"(mean_gray.binaryproto|gray_\w+)"', r'"interop/\1"', net.read_text())
    net.write_text(text)
    assert run(f"extract_features {files} sum,pool sum_db,pool_db 3 lmdb CPU").code == 0
    expected = np.load(INTEROP / "features.npz")
    for name in ("sum", "pool"):
        made = records(f"{name}_db")
        golden = records(f"interop/features_{name}_lmdb")
        assert [key for key, _ in made] == [key for key, _ in golden]
        datums = [parse_datum(*record) for record in made]
        values = np.array([datum.float_data for datum in datums], np.float32)
        assert np.allclose(values, expected[name], rtol=1e-5, atol=1e-5)
        shape = (datums[0].channels, datums[0].height, datums[0].width)
        assert shape == tuple(expected[f"{name}/datum_shape"])
        fields = [[field.name for field, _ in parse_datum(*record).ListFields()] for record in (made[0], golden[0])]
        assert fields[0] == fields[1]
    assert "3 blobs need as many databases, not 1" in run(f"extract_features {files} a,b,c x 3 lmdb").fatal
    assert 'has no blob "a"; it has data' in run(f"extract_features {files} a x 3 lmdb").fatal
    assert '"sum_db" exists already' in run(f"extract_features {files} pool,sum x,sum_db 3 lmdb").fatal
    assert not Path("x").exists()
    assert "must be 1 or more, not 'none'" in run(f"extract_features {files} a x none lmdb").fatal
    assert run(f"extract_features {files} sum one_db 1 leveldb").code == 0 and len(records("one_db")) == 16


def test_the_log_of_extract_features(run: Run) -> None:
    for path in LOGS.glob("*.prototxt"):
        shutil.copy(path, ".")
    for name in ("train.h5", "train_h5.txt"):
        shutil.copy(GOLDEN / "solvers" / name, ".")
    run("train --solver=solver_plain.prototxt")
    made = run("extract_features talk_iter_8.caffemodel net.prototxt ip features_lmdb 2 lmdb").err
    assert_same(lines_of(made), lines_of((LOGS / "extract_features.log").read_text()))


OLD = json.loads((INTEROP / "old_formats.json").read_text())


@pytest.mark.parametrize("name", OLD)
def test_upgraded_prototxts_are_caffes(name: str, run: Run) -> None:
    shutil.copy(INTEROP / name, "old.prototxt")
    kind = "solver" if name.startswith("old_solver") else "net"
    result = run(f"upgrade_{kind}_proto_text old.prototxt new.prototxt")
    assert result.messages == OLD[name]["log"]
    made = read_text("new.prototxt", pb.SolverParameter if kind == "solver" else pb.NetParameter)
    fields = json_format.MessageToDict(made, preserving_proto_field_name=True)
    assert _plain(fields) == _plain(OLD[name]["upgraded"])
    assert result.code == (1 if any("problems upgrading" in line for line in OLD[name]["log"]) else 0)


def _plain(value: object) -> object:
    """64-bit numbers are texts in one JSON and numbers in the other; floats have more or fewer digits."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    try:
        return value if isinstance(value, bool) else float(np.float32(value))  # type: ignore[arg-type]
    except ValueError:
        return value


def test_an_upgraded_model_is_caffes(run: Run) -> None:
    shutil.copy(INTEROP / "v1.caffemodel", "old")
    result = run("upgrade_net_proto_binary old new")
    assert Path("new").read_bytes() == (INTEROP / "v1_upgraded.caffemodel").read_bytes()
    assert (result.code, result.messages[-1]) == (0, "Wrote upgraded NetParameter binary proto to new")
    assert run("upgrade_net_proto_binary new newer").messages[0] == "File already in latest proto format: new"


def test_fields_that_are_lost_make_the_exit_code_1(run: Run) -> None:
    layer = 'layer { name: "a" type: "relu" num_output: 3 }'  # V0's ReLU has no such field
    Path("old.prototxt").write_text(f'input: "x" input_dim: [1, 1, 1, 1] layers {{ {layer} bottom: "x" top: "y" }}')
    result = run("upgrade_net_proto_text old.prototxt new.prototxt")
    assert result.code == 1
    assert "Encountered error(s) while upgrading prototxt; see details above." in result.messages
    assert upgrade_net(read_text("new.prototxt", pb.NetParameter), "new")


@pytest.mark.parametrize("tool", PROGRAMS)
def test_a_tool_by_its_own_name(tool: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (f"/usr/bin/{tool}", f"build/tools/{tool}.bin"):
        monkeypatch.setattr("sys.argv", [path])
        if tool in PROGRAMS[:2]:
            assert run("version").out.startswith(f"{tool} version ")
            continue
        code, out, _ = run("--gray" if tool == "convert_imageset" else "--minloglevel=0")
        assert code == 1 and out.startswith(f"Usage: {tool} ") and f"\nExample:\n  {tool} " in out
        assert run("--help").code == 0


def test_programs_are_those_of_the_package() -> None:
    text = (GOLDEN.parents[1] / "pyproject.toml").read_text()
    section = text.partition("[project.scripts]\n")[2].partition("\n\n")[0]
    names = re.findall(r'^(\w+) = "fcaffe.__main__:main"', section, re.MULTILINE)
    assert tuple(names) == PROGRAMS and PROGRAMS[:2] == ("fcaffe", "caffe") and {*PROGRAMS[2:]} <= {*COMMANDS}
