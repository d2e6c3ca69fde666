"""Output files of every command: an existing file of another kind and the command's inputs survive."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fcaffe.cli.commands import COMMANDS
from fcaffe.data.images import encode_image
from fcaffe.model_files import write_model
from fcaffe.net.weights import to_model
from fcaffe.pycaffe import session
from tests.cli.conftest import NET, SOLVER, Run, write_records
from tests.cli.test_annotated_sets import LABEL_MAP, OBJECTS, xml
from tests.cli.test_detect_objects import NET as DETECTION
from tests.cli.test_picture_commands import NET as DEPLOY
from tests.conftest import make_net

for package in ("cv2", "h5py", "matplotlib", "onnx", "onnxruntime", "tensorboardX"):
    pytest.importorskip(package)

ALONE = "writes no file of a name that the user gives, or only a new folder of its own"
DEPLOYED = "--model_def deploy.prototxt --pretrained_model deploy.caffemodel --mean_file="
DETECT = "detect in.csv {} --crop_mode list --context_pad 0 " + DEPLOYED
PREDICT = "predict some/a.png --mean= --model deploy.prototxt --weights deploy.caffemodel "
CONVERT = "convert deploy.caffemodel {}"

# Each output argument of each command: the kind of what it writes, and a line in which {} is the output's name.
OUTPUTS: dict[str, str | list[tuple[str, str]]] = {
    "train": [
        ("html", "train --solver solver.prototxt --report {}"),
        ("log", "train --solver solver.prototxt --log {}"),
        ("new", "train --solver solver.prototxt --log_dir {}"),
        ("new", "train --solver solver.prototxt --tensorboard {}"),
    ],
    "test": [("log", "test --model net.prototxt --weights small.caffemodel --iterations 1 --log {}")],
    "time": [("log", "time --model net.prototxt --iterations 1 --log {}")],
    "device_query": ALONE,
    "dataset": [("new", "dataset --sample digits {}")],
    "new": [("new", "new {} --data set --net cifar10_quick")],
    "predict": [
        ("html", PREDICT + "--html {}"),
        ("predictions", PREDICT + "--csv {}"),
        ("new", "predict --model boxes.prototxt --weights boxes.caffemodel --mean= --out {} some/a.png"),
        ("png", "predict --model boxes.prototxt --weights boxes.caffemodel --mean= --out made/out some/a.png"),
    ],
    "deploy": [("prototxt", "deploy net.prototxt {}")],
    "convert_imageset": [("new", "convert_imageset some/ list.txt {}")],
    "convert_annoset": [
        ("new", "convert_annoset --anno_type=detection --label_map_file=map.prototxt some/ pairs.txt {}")
    ],
    "convert_mnist_data": ALONE,
    "convert_cifar_data": ALONE,
    "convert_mnist_siamese_data": ALONE,
    "compute_image_mean": [("binaryproto", "compute_image_mean lmdb {}")],
    "extract_features": [("new", "extract_features small.caffemodel net.prototxt ip {} 1 lmdb")],
    "upgrade_net_proto_text": [("prototxt", "upgrade_net_proto_text net.prototxt {}")],
    "upgrade_net_proto_binary": [("caffemodel", "upgrade_net_proto_binary small.caffemodel {}")],
    "upgrade_solver_proto_text": [("prototxt", "upgrade_solver_proto_text solver.prototxt {}")],
    "draw_net": [("raw", "draw_net net.prototxt {}")],
    "classify": [("npy", "classify some/a.png {} --images_dim 8,8 " + DEPLOYED)],
    "detect": [("csv", DETECT), ("h5", DETECT)],
    "parse_log": [("table", "parse_log made/{}.log made")],
    "extract_seconds": [("seconds", "extract_seconds train.log {}")],
    "plot_training_log": [("png", "plot_training_log 6 {} train.log")],
    "summarize": ALONE,
    "resize_and_crop_images": [
        ("png", "resize_and_crop_images --input names.txt --input_folder some --output_folder made/out")
    ],
    "summary": ALONE,
    "solver": ALONE,
    "detect-objects": [
        ("new", "detect-objects --model boxes.prototxt --weights boxes.caffemodel --out {} some/a.png"),
        ("png", "detect-objects --model boxes.prototxt --weights boxes.caffemodel --out made/out some/a.png"),
    ],
    "report": [("html", "report train.log {}")],
    "plot": [("png", "plot train.log --out {}"), ("svg", "plot train.log --out {}")],
    "convert": [
        *(
            (ending, CONVERT + " --model deploy.prototxt" * (ending == "onnx"))
            for ending in ("caffemodel", "h5", "npz", "safetensors", "onnx", "prototxt")
        ),
        ("solverstate", "convert small.solverstate {}"),
        ("binaryproto", "convert lmdb {}"),
        ("npy", "convert lmdb {}"),
        ("prototxt", "convert net.onnx {} made/weights.npz"),
        ("npz", "convert net.onnx made/net.prototxt {}"),
        ("prototxt", CONVERT + " --model deploy.prototxt --target bvlc"),
        ("npz", "convert deploy.caffemodel made/net.prototxt {} --model deploy.prototxt --target bvlc"),
    ],
    "merge-bn": [
        ("prototxt", "merge-bn deploy.prototxt deploy.caffemodel {} made/other.caffemodel"),
        ("caffemodel", "merge-bn deploy.prototxt deploy.caffemodel made/other.prototxt {}"),
    ],
    "compress": [("dcmodel", "compress deploy.caffemodel {}")],
    "lmdb": [("new", "lmdb export lmdb {}")],
    "run": ALONE,
    "bench": ALONE,
    "plan": ALONE,
}
CASES = [(kind, line) for outputs in OUTPUTS.values() if outputs is not ALONE for kind, line in outputs]
NAMES = {"table": "x", "log": "x.txt", "machine": "x.json", "seconds": "x.txt", "new": "x"}


def test_every_command_is_here() -> None:
    assert set(OUTPUTS) == set(COMMANDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input of each kind."""
    folder = tmp_path_factory.mktemp("outputs")
    with contextlib.chdir(folder) if hasattr(contextlib, "chdir") else _in(folder):
        _write_inputs()
    return folder


@contextlib.contextmanager
def _in(folder: Path):  # type: ignore[no-untyped-def]
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _write_inputs() -> None:
    from fcaffe.cli import main

    Path("net.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(SOLVER.replace("snapshot: 4", "snapshot: 0"))
    write_records("lmdb", [0, 1, 2] * 4)
    assert main(["train", "--solver", "solver.prototxt", "--log", "train.log"]) == 0
    for ending in ("caffemodel", "solverstate"):
        Path(f"small_iter_8.{ending}").rename(f"small.{ending}")
    for name, text in (("deploy", DEPLOY), ("boxes", DETECTION)):
        Path(f"{name}.prototxt").write_text(text)
        write_model(f"{name}.caffemodel", to_model(make_net(text, "TEST")))
    assert main(["convert", "deploy.caffemodel", "net.onnx", "--model", "deploy.prototxt"]) == 0
    Path("some").mkdir()
    Path("some/a.png").write_bytes(encode_image(np.full((3, 20, 24), 50, np.uint8), "png"))
    for number in range(2):
        Path(f"classes/{number}").mkdir(parents=True)
        for other in range(2):
            pixels = np.full((3, 32, 32), 50 * number + other, np.uint8)
            Path(f"classes/{number}/{other}.png").write_bytes(encode_image(pixels, "png"))
    assert main(["dataset", "classes", "set"]) == 0
    Path("some/a.xml").write_text(xml(OBJECTS["a"]))
    Path("list.txt").write_text("a.png 1\n")
    Path("names.txt").write_text("a.png\n")
    Path("pairs.txt").write_text("a.png a.xml\n")
    Path("map.prototxt").write_text(LABEL_MAP)
    Path("in.csv").write_text("filename,ymin,xmin,ymax,xmax\nsome/a.png,0,0,9,9\n")
    Path("foreign").mkdir()
    Path("foreign/thesis.tex").write_text("\\documentclass{article}\n")
    Path("foreign/script.py").write_text('name = "no prototxt"\n')
    Path("foreign/workflow.yaml").write_text("name: CI\non: push\n")
    Path("foreign/page.html").write_text("<!doctype html>\n<html><head><title>Mine</title></head></html>\n")
    Path("foreign/table.csv").write_text("name,value\na,1\n")
    Path("foreign/data.json").write_text('{"name": "mine"}\n')
    Path("foreign/blank.txt").write_text("\n\n")
    Path("foreign/letter.pdf").write_bytes(b"%PDF-1.4 mine")
    with zipfile.ZipFile("foreign/mine.docx", "w") as file:
        file.writestr("text", "mine")
    with sqlite3.connect("foreign/mine.db") as database:
        database.execute("create table mine (x)")
    database.close()


@pytest.fixture(autouse=True)
def in_a_copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with links to all inputs, and a new folder `made`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_on_gpu", False)
    for path in folder.iterdir():
        if path.is_file():
            Path(path.name).write_bytes(path.read_bytes())
        else:
            Path(path.name).symlink_to(path)
    Path("made/out").mkdir(parents=True)
    Path("made/x.log").write_bytes(Path("train.log").read_bytes())


def target_of(kind: str, line: str) -> tuple[list[str], Path]:
    """The words of a line, and the path of what it writes."""
    name = NAMES.get(kind, f"x.{kind}")
    if line.startswith(("resize", "detect-objects", "predict")) and "{}" not in line:
        return line.split(), Path("made/out/a.png")
    if line.startswith("parse_log"):
        return line.format(name).split(), Path("made/x.log.train")
    return line.format(f"made/{name}").split(), Path("made", name)


# Files of the folder that are of the kind that an output has.
OF_KIND = {
    "prototxt": {"net.prototxt", "solver.prototxt", "deploy.prototxt", "boxes.prototxt"},
    "caffemodel": {"small.caffemodel", "deploy.caffemodel", "boxes.caffemodel"},
    "solverstate": {"small.solverstate", "net.onnx"},  # the bytes of both have the fields of a state
    "onnx": {"net.onnx"},
    "log": {"train.log"},
    "csv": {"in.csv"},
    "png": {"a.png", "letter.pdf"},  # any picture
    "svg": {"a.png", "letter.pdf"},
    "raw": {"a.png", "letter.pdf"},
}


@pytest.mark.parametrize(("kind", "line"), CASES)
def test_a_file_of_another_kind_survives(kind: str, line: str, run: Run, folder: Path) -> None:
    words, target = target_of(kind, line)
    files = [path for path in (*folder.iterdir(), *(folder / "foreign").iterdir()) if path.is_file()]
    for path in (*files, folder / "some" / "a.png"):
        if path.name in OF_KIND.get(kind, ()):
            continue
        content = path.read_bytes()
        target.unlink(missing_ok=True)
        target.write_bytes(content)
        done = run(*words)
        assert done.code != 0 and str(target) in done.fatal, f"over {path.name}: {done.err}"
        assert target.read_bytes() == content, path.name


@pytest.mark.filterwarnings(r"ignore:\s*your performance may suffer")  # of pandas
@pytest.mark.parametrize(("kind", "line"), [case for case in CASES if case[0] != "new"])
def test_an_own_file_is_replaced(kind: str, line: str, run: Run) -> None:
    if kind == "h5" and line == DETECT:
        pytest.importorskip("pandas")
        pytest.importorskip("tables")
    words, target = target_of(kind, line)
    target.touch()  # an empty file is no loss
    done = run(*words)
    assert done.code == 0, done.err
    before = target.stat()
    assert before.st_size > 0
    assert run(*words).code == 0
    assert target.stat().st_mtime_ns > before.st_mtime_ns, "written anew"


@pytest.mark.parametrize(
    ("line", "survives"),
    [
        ("convert net.prototxt ./net.prototxt", "net.prototxt"),
        ("convert deploy.caffemodel link.caffemodel", "deploy.caffemodel"),
        ("convert net.onnx made/x.prototxt made/x.prototxt", "net.onnx"),
        ("merge-bn deploy.prototxt deploy.caffemodel deploy.prototxt made/x.caffemodel", "deploy.prototxt"),
        ("merge-bn deploy.prototxt deploy.caffemodel made/x.prototxt deploy.caffemodel", "deploy.caffemodel"),
        ("detect in.csv in.csv --crop_mode list", "in.csv"),
        ("resize_and_crop_images --input names.txt --input_folder some --output_folder some/", "some/a.png"),
        ("detect-objects --model boxes.prototxt --weights boxes.caffemodel --out some some/a.png", "some/a.png"),
        ("predict --model boxes.prototxt --weights boxes.caffemodel --mean= --out some some/a.png", "some/a.png"),
        ("deploy net.prototxt net.prototxt", "net.prototxt"),
    ],
)
def test_inputs_survive(line: str, survives: str, run: Run) -> None:
    Path("link.caffemodel").symlink_to("deploy.caffemodel")
    content = Path(survives).read_bytes()
    done = run(*line.split())
    assert done.code != 0 and "is another file of this command" in done.fatal
    assert Path(survives).read_bytes() == content


@pytest.mark.parametrize(
    "line", [line for kind, line in CASES if kind == "new" and not re.search("--(log_dir|tensorboard|out)", line)]
)
def test_a_folder_that_exists_is_not_overwritten(line: str, run: Run) -> None:
    words, target = target_of("new", line)
    assert run(*words).code == 0
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert f'"{target}" exists already' in run(*words).fatal
    assert before and {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before


def test_caffes_upgrades_may_replace_their_input(run: Run) -> None:
    assert run("upgrade_net_proto_text net.prototxt net.prototxt").code == 0
    assert run("upgrade_net_proto_binary small.caffemodel small.caffemodel").code == 0
    assert run("upgrade_solver_proto_text solver.prototxt solver.prototxt").code == 0


def test_a_page_is_html(run: Run) -> None:
    assert "the name of a page about a training ends in .html or .htm" in run("report train.log other.log").fatal
    assert "ends in .html" in run("train --solver solver.prototxt --report made/page").fatal
    assert run("report train.log /dev/null").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--report none/page.html", "cannot write none/page.html"),
        ("--tensorboard net.prototxt/events", "--tensorboard net.prototxt/events: cannot write there"),
    ],
)
def test_what_cannot_be_written_is_told_before_a_training(words: str, message: str, run: Run, tmp_path: Path) -> None:
    assert run(f"train --solver solver.prototxt {words}").fatal.startswith(message.format(tmp_path))
    assert not list(tmp_path.glob("small_iter*"))
