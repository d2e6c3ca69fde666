"""Targets: what toolchains read of Caffe, `convert --target`, `summary --target`, and `--cut`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fcaffe.net.registry import layer_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net
from fcaffe.tools.target import FOLDER, read_target
from tests.cli.conftest import Run
from tests.tools import bvlc
from tests.tools.onnx_graphs import model_of

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TARGETS = sorted(path.stem for path in FOLDER.glob("*.txt"))
OTHERS = "CReLU DeephiResize DepthwiseConv GSTiling PassThrough RPROI RReLU Python YoloDetectionOutput *"

BACKBONE = (  # of ResNet: a pooling that rounds down; of MobileNet: ReLU6 and groups; of U-Net: transposed convolution
    "a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w) n = BatchNormalization (a, s, s, m, v) r = Relu (n) "
    "p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (r) "
    "d = Conv <group = 4, pads = [1, 1, 1, 1]> (p, dw) c = Clip (d, zero, six) e = Conv (c, pw) f = Add (e, p) "
    "u = ConvTranspose <strides = [2, 2]> (f, tw) j = Concat <axis = 1> (u, r) "
    'up = Resize <mode = "nearest"> (f, , scales) t = Add (up, r) k = Concat <axis = 1> (j, t) '
)
CLASSES = "g = GlobalAveragePool (k) l = Flatten (g) y = Gemm (l, fw)"
YOLO = (
    "h = Conv (k, hw, hb) q = Reshape (h, five) o = Transpose <perm = [0, 1, 3, 4, 2]> (q) z = Sigmoid (o) "
    "b = Mul (z, two) y = Reshape (b, three)"
)
SSD = (
    "h = Conv (k, hw) o = Transpose <perm = [0, 2, 3, 1]> (h) q = Reshape (o, boxes) y = Softmax <axis = 2> (q) "
    "h2 = Conv (f, ow) i = Shape (h2) y2 = Relu (h2)"
)
DFL = "h = Conv (k, hw) q = Reshape (h, bins) z = Softmax <axis = 1> (q) y = Conv (z, mean)"
WEIGHTS = {"w": (4, 3, 3, 3), "s": (4,), "m": (4,), "dw": (4, 1, 3, 3), "pw": (4, 4, 1, 1), "tw": (4, 4, 2, 2)}
WEIGHTS |= {"fw": (12, 5), "hw": (12, 12, 1, 1), "hb": (12,), "ow": (6, 4, 1, 1), "mean": (1, 6, 1, 1)}
FLOATS = {"v": [1] * 4, "zero": 0, "six": 6, "two": 2, "scales": [1, 1, 2, 2]}
INTEGERS = {"five": [1, 2, 6, 8, 8], "three": [1, -1, 6], "boxes": [1, -1, 2], "bins": [1, 6, 2, 64]}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_model(head: str) -> None:
    constants = {name: np.array(value, np.float32) for name, value in FLOATS.items()} | INTEGERS
    model = model_of(BACKBONE + head, {"x": (1, 3, 16, 16)}, WEIGHTS, constants=constants)
    Path("m.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("head", "outputs"), [(CLASSES, ["y"]), (YOLO, ["h"]), (SSD, ["h", "y2"]), (DFL, ["h"])])
def test_nets_for_each_target(head: str, outputs: list[str], target: str, run: Run) -> None:
    """With equal values, only layers that it takes, and an end before the decoding of boxes."""
    write_model(head)
    done = run("convert", "m.onnx", "m.prototxt", "m.caffemodel", "--target", target, "--cut", "auto", "--check")
    assert done.code == 0, done.err
    assert re.findall(r"^(\w+): largest difference", done.out, re.MULTILINE) == outputs
    fits = run("summary", "m.prototxt", "--target", target)
    assert (fits.code, fits.out) == (0, f"m.prototxt fits {target}\n")
    types = {layer.type for layer in read_net("m.prototxt").layer}
    assert ("ReLU6" in types) == (target in ("forks", "ncnn", "opencv", "vitis-ai"))


def test_what_does_not_fit_is_named(run: Run) -> None:
    write_model(YOLO)
    files = ("m.onnx", "m.prototxt", "m.caffemodel")
    assert run("convert", *files, "--forks").code == 0
    assert (names := run("summary", "m.prototxt", "--target", "nnie")).code == 1
    order = "permute_param.order is 0,1,3,4,2, and nnie takes permute_param.order = 0,2,3,1"
    assert f'layer "Transpose_15" (Permute): {order}' in names.out
    assert 'layer "Clip_5" (ReLU6): nnie takes no ReLU6; min(x, 6) = x - ReLU(x - 6)' in names.out
    refused = run("convert", *files, "--target", "vitis-ai").fatal
    assert 'layer "Sigmoid_16" (Sigmoid): vitis-ai takes no Sigmoid' in refused and "--cut" in refused
    assert "m.onnx has no value" in run("convert", *files, "--cut", "nothing").fatal
    assert "one of the two" in run("convert", *files, "--forks", "--target", "nnie").fatal
    assert "did you mean nnie?" in run("convert", *files, "--target", "nni").fatal
    assert run("convert", *files, "--cut", "f,h", "--check").out.splitlines()[1].startswith("f: largest difference")


def test_a_model_and_its_net_are_rewritten_for_a_target(run: Run) -> None:
    write_model(CLASSES)
    assert run("convert", "m.onnx", "m.prototxt", "m.caffemodel").code == 0
    for target in TARGETS:
        done = run("convert", "m.caffemodel", "new.prototxt", "--model", "m.prototxt", "--target", target)
        if target in ("ncnn", "nnie", "vitis-ai"):
            rounding = "pooling_param.round_mode is FLOOR"
            assert f'm.prototxt does not fit {target}: layer "MaxPool_3" (Pooling): {rounding}' in done.fatal
        else:
            assert run("summary", "new.prototxt", "--target", target).out == f"new.prototxt fits {target}\n"
    words = ["m.caffemodel", "new.prototxt", "new.caffemodel", "--model", "m.prototxt", "--target", "opencv"]
    assert run("convert", *words, "--merge-bn").out.endswith("of m.prototxt, for opencv\n")
    assert "BatchNorm" not in Path("new.prototxt").read_text()
    assert "convert m.caffemodel new.prototxt WEIGHTS" in run("convert", *words[:2], *words[3:], "--merge-bn").fatal
    assert "goes with --merge-bn alone" in run("convert", *words, "--check").fatal


CONDITIONS = [
    ("Pooling: no pooling_param.round_mode", "pooling_param { round_mode: CEIL }", "pooling_param { ceil_mode: true }"),
    ("Pooling: pooling_param.pool = AVE | MAX", "pooling_param { pool: STOCHASTIC }", ""),
    ("Pooling: bottoms = 2", "", 'bottom: "a" bottom: "b"'),
    ("Convolution: convolution_param.group <= 4", "convolution_param { group: 5 }", "convolution_param { group: 4 }"),
    ("Convolution: convolution_param.pad >= 1", "convolution_param { pad: 1 pad: 0 }", ""),
    ("Eltwise: eltwise_param.coeff = 1", "eltwise_param { coeff: 1 coeff: -1 }", "eltwise_param { coeff: 1 coeff: 1 }"),
    (
        "Permute: permute_param.order = 0,2,3,1",
        "permute_param { order: 0 order: 1 }",
        "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    ),
    ("Reshape: reshape_param.shape.dim[1] != 0", "reshape_param { shape { dim: 0 dim: 0 } }", ""),
    ("*: no loss_weight", "loss_weight: 1", ""),
    ("no Swish: use Sigmoid", "", None),
]


@pytest.mark.parametrize(("line", "wrong", "right"), CONDITIONS, ids=[case[0] for case in CONDITIONS])
def test_conditions(line: str, wrong: str, right: str | None) -> None:
    Path("own.txt").write_text(f"# mine\n{line}  # of a document\n")
    target, kind = read_target("own.txt"), re.findall(r"[A-Z]\w+", line)
    layers = [parse_text(f'type: "{(kind or ["ReLU"])[0]}" {more}', pb.LayerParameter) for more in (wrong, right or "")]
    assert [bool(target.misfit(layer)) for layer in layers] == [True, right is None]


@pytest.mark.parametrize("line", ["Pooling pool", "Pooling: pooling_param.x = 1", "ReLU: bottoms <= few", "A: no b c"])
def test_a_wrong_file_is_named_with_its_line(line: str) -> None:
    Path("own.txt").write_text(f"ReLU\n{line}\n")
    with pytest.raises(Exception, match=re.escape("own.txt:2: ")):
        read_target("own.txt")


def test_shipped_files() -> None:
    for target in map(read_target, TARGETS):
        assert target.types.keys() | target.instead.keys() <= {*layer_types(), *OTHERS.split()}
        assert not target.types.keys() & target.instead.keys()
    assert read_target("bvlc").types.keys() == bvlc.TYPES


def test_opencv_loads_what_fits() -> None:
    cv2 = pytest.importorskip("cv2")
    if int(cv2.__version__.partition(".")[0]) > 4:
        pytest.skip("OpenCV 5 has no importer for Caffe")
    target = read_target("opencv")
    for kind in set(layer_types()) - {"Input", "LSTM", "MatMul", "Tile"}:  # its own ones have other fields
        shape = "input_param { shape { dim: [1, 4, 8, 8] } }"
        layer = f'name: "y" type: "{kind}" bottom: ["x", "x", "x"] top: "y"'
        text = f'layer {{ name: "x" type: "Input" top: "x" {shape} }} layer {{ {layer} }}'
        problem = ""
        try:
            net = cv2.dnn.readNetFromCaffe(np.frombuffer(text.encode(), np.uint8))
            net.setInput(np.ones((1, 4, 8, 8), np.float32))
            net.forward()
        except cv2.error as error:
            problem = str(error)
        assert ("Can't create layer" in problem) == (kind not in target.types), kind
