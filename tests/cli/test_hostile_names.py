"""Names and texts from files in what commands show: no control character, no forged line, whatever a name holds."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from fcaffe.cli import main
from fcaffe.cli.commands import COMMANDS
from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.images import encode_image
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, write_text
from fcaffe.pycaffe import session
from tests.cli.conftest import Run
from tests.cli.test_annotated_sets import LABEL_MAP
from tests.cli.test_detect_objects import NET as DETECTION
from tests.cli.test_picture_commands import NET as DEPLOY

for package in ("cv2", "matplotlib", "onnx", "onnxruntime"):
    pytest.importorskip(package)

FORGED = "F0101 00:00:00.000000     1 solver.cpp:1] forged"
NASTY = f"\x1b]0;owned\x07 $x^{{$ %s %(a)s {{0}} <b>\"'\\ \x00\x9b\r\n{FORGED}\n\u202e\u2066\u2028"
FILE = NASTY.replace("\x00", "").replace("/", "")  # no file's name has these

TRAINING = """name: "net"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { type: "constant" } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" param { name: "w" }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }
"""

# What each command shows names of; {} is the hostile name of a file.
LINES = {
    "train": ["train --solver solver.prototxt --report page.html --log train.log", "train --solver {}"],
    "test": ["test --model net.prototxt --weights net.caffemodel --iterations 1", "test --model {} --weights x"],
    "time": ["time --model net.prototxt --iterations 1", "time --model net.prototxt --iterations 1 --profile"],
    "dataset": ["dataset {} data", "dataset classes data --size 8x8"],
    "new": ["new {} --data data --net {}", "new project --data data --net deploy.prototxt"],
    "predict": [
        "predict --model deploy.prototxt --weights deploy.caffemodel --mean= {}.png",
        "predict --model deploy.prototxt --weights deploy.caffemodel --mean= {} --json",
        "predict --model boxes.prototxt --weights boxes.caffemodel --mean= --labels {} {}.png",
    ],
    "deploy": ["deploy net.prototxt out.prototxt", "deploy {} out.prototxt"],
    "convert_imageset": ["convert_imageset ./ list.txt pictures_lmdb", "convert_imageset ./ {} other_lmdb"],
    "convert_annoset": ["convert_annoset --label_map_file map.prototxt ./ list.txt annotated_lmdb"],
    "convert_mnist_data": ["convert_mnist_data {} {} mnist_lmdb"],
    "convert_mnist_siamese_data": ["convert_mnist_siamese_data {} {} siamese"],
    "convert_cifar_data": ["convert_cifar_data {} {} lmdb"],
    "compute_image_mean": ["compute_image_mean lmdb mean.binaryproto", "compute_image_mean {}"],
    "extract_features": ["extract_features net.caffemodel net.prototxt {} {} 1 lmdb"],
    "upgrade_net_proto_text": ["upgrade_net_proto_text net.prototxt {}"],
    "upgrade_net_proto_binary": ["upgrade_net_proto_binary net.caffemodel {}"],
    "upgrade_solver_proto_text": ["upgrade_solver_proto_text solver.prototxt {}"],
    "draw_net": ["draw_net net.prototxt net.svg", "draw_net net.prototxt net.raw", "draw_net net.prototxt {}"],
    "classify": ["classify {}.png out.npy --images_dim 8,8 --model_def {} --pretrained_model deploy.caffemodel"],
    "detect": ["detect {} out.csv --crop_mode list --model_def {} --pretrained_model deploy.caffemodel"],
    "parse_log": ["parse_log train.log . --verbose", "parse_log {} ."],
    "extract_seconds": ["extract_seconds train.log seconds.txt", "extract_seconds {} x"],
    "plot_training_log": ["plot_training_log 6 loss.png train.log", "plot_training_log 6 {}.png {}"],
    "summarize": ["summarize net.prototxt", "summarize {}"],
    "resize_and_crop_images": ["resize_and_crop_images --input list.txt --input_folder . --output_folder out"],
    "summary": [
        "summary net.prototxt",
        "summary net.prototxt --json",
        "summary net.prototxt --target ncnn",
        "summary net.caffemodel",
        "summary {}",
    ],
    "solver": ["solver solver.prototxt", "solver solver.prototxt --json", "solver {}"],
    "detect-objects": ["detect-objects --model boxes.prototxt --weights boxes.caffemodel --labels map.prototxt {}.png"],
    "report": ["report train.log page.html --solver solver.prototxt", "report {} page.html"],
    "plot": ["plot train.log --out plot.svg", "plot {} --out plot.svg"],
    "convert": [
        "convert net.caffemodel net.h5",
        "convert net.caffemodel net.npz",
        "convert deploy.caffemodel deploy.onnx --model deploy.prototxt --check",
        "convert deploy.onnx back.prototxt back.caffemodel --check",
        "convert deploy.caffemodel new.prototxt --model deploy.prototxt --target nnie",
        "convert net.caffemodel {}.npz",
        "convert {} x.npz",
    ],
    "merge-bn": ["merge-bn deploy.prototxt deploy.caffemodel merged.prototxt merged.caffemodel"],
    "compress": ["compress net.caffemodel net.dcmodel"],
    "lmdb": ["lmdb cat lmdb", "lmdb info lmdb", "lmdb export lmdb exported", "lmdb info {}"],
    "run": ["run {}"],
    "plan": ["plan --net net.prototxt --machine h200 --workers 2"],
}
NO_NAMES = {"device_query", "bench"}


def test_every_command_is_here() -> None:
    assert set(LINES) | NO_NAMES == set(COMMANDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def hostile(message: object) -> object:
    """Give every name and blob of a net, solver or label map another one, the same everywhere."""
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for one in value if hasattr(value, "extend") else [value]:
                hostile(one)
        elif field.name in ("name", "top", "bottom", "display_name"):
            named = lambda text: text + NASTY + "n" * 9000 * (text == "ip")  # noqa: E731
            if hasattr(value, "extend"):
                value[:] = [named(one) for one in value]
            else:
                setattr(message, field.name, named(value))
    return message


@pytest.fixture(autouse=True, scope="module")
def inputs(folder: Path) -> None:
    """Nets, a solver, models, a database, lists and pictures in which every name is hostile."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    from fcaffe.pycaffe.net import Net

    monkeypatch.setattr(session, "_on_gpu", False)
    session.set_random_seed(1)
    for name, text in (("net", TRAINING), ("deploy", DEPLOY), ("boxes", DETECTION)):
        param = hostile(parse_text(text, pb.NetParameter))
        write_text(f"{name}.prototxt", param)
        Net(f"{name}.prototxt", session.TEST).save(f"{name}.caffemodel")
    solver = pb.SolverParameter(net="net.prototxt", base_lr=0.1, lr_policy="fixed", max_iter=2, display=1)
    solver.test_iter.append(1)
    solver.test_interval, solver.snapshot_prefix, solver.random_seed = 1, "small", 1
    write_text("solver.prototxt", solver)
    write_text("map.prototxt", hostile(parse_text(LABEL_MAP, pb.LabelMap)))
    image = np.zeros((3, 8, 8), np.uint8)
    write_lmdb(
        "lmdb", [(f"{index}{NASTY}".encode(), array_to_datum(image, index).SerializeToString()) for index in (0, 1)]
    )
    Path(f"{FILE}.png").write_bytes(encode_image(image, "png"))
    for name in ("cat", FILE):
        Path("classes", name).mkdir(parents=True)
        for number in range(3):
            Path("classes", name, f"{number}{FILE}.png").write_bytes(encode_image(image + number, "png"))
    Path("list.txt").write_text(f"{NASTY.splitlines()[0]}.png 0\n{NASTY.splitlines()[0]} {NASTY.splitlines()[0]}\n")
    Path(FILE).write_text("no file of any kind " + NASTY)
    assert main(["train", "--solver", "solver.prototxt", "--log", "train.log"]) == 0
    assert main(["convert", "deploy.caffemodel", "deploy.onnx", "--model", "deploy.prototxt"]) == 0
    monkeypatch.undo()


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_no_output_has_a_raw_control_character_or_a_forged_line(
    line: str, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(session, "_on_gpu", False)
    result = run(*(word.replace("{}", FILE) for word in line.split()))
    log = Path("train.log").read_text() if "--log" in line else ""
    for text in (result.out, result.err, log):
        raw = {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp")} - {"\n", "\t"}
        assert not raw, f"{raw} in {text[-2000:]!r}"
        assert not re.search(f"^{re.escape(FORGED)}", text, re.MULTILINE)
        assert "Traceback" not in text and "fault in fcaffe" not in text
    if "page.html" in line and result.code == 0:
        assert '<b>"' not in Path("page.html").read_text()
