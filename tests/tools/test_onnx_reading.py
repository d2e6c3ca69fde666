"""ONNX models as Caffe nets: operators against onnxruntime, what is refused, the nets under models/ there and back."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fcaffe.engines import cpu_engine
from fcaffe.errors import FcaffeError
from fcaffe.net.registry import registered
from fcaffe.onnx.check import random_inputs, run_net, run_onnx
from fcaffe.onnx.check_conversion import check_net
from fcaffe.onnx.files import deploy_net
from fcaffe.onnx.reading.convert import from_onnx
from fcaffe.onnx.writing.export import to_onnx, write_onnx
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, write_text
from fcaffe.tools.nets import new_net, read_net_for
from fcaffe.tools.target import read_target
from tests.tools.onnx_graphs import converted, largest_difference, model_of
from tests.tools.onnx_nets import with_random_weights

MODELS = Path(__file__).parents[2] / "models"
IMAGE = {"x": (2, 4, 9, 8)}
LN = (
    "m = ReduceMean <axes = [-1]> (x) c = Sub (x, m) two = Constant <value_float = 2.0> () s = Pow (c, two) "
    "v = ReduceMean <axes = [-1]> (s) e = Constant <value_float = 0.00001> () w = Add (v, e) d = Sqrt (w) "
    "n = Div (c, d) g = Mul (n, a) y = Add (g, b)"
)
GELU = (
    "r = Constant <value_float = 1.4142135> () z = Div (x, r) e = Erf (z) one = Constant <value_float = 1.0> () "
    "p = Add (e, one) h = Constant <value_float = 0.5> () "
)
SHUFFLE = (
    "s = Constant <value_ints = [2, 2, 2, 9, 8]> () f = Constant <value_ints = [2, 4, 9, 8]> () "
    "a = Reshape (x, s) t = Transpose <perm = [0, 2, 1, 3, 4]> (a) y = Reshape (t, f)"
)
DYNAMIC = (
    "s = Shape (x) i = Constant <value_int = 0> () n = Gather (s, i) ax = Constant <value_ints = [0]> () "
    "u = Unsqueeze (n, ax) m = Constant <value_ints = [-1]> () d = Concat <axis = 0> (u, m) y = Reshape (x, d)"
)
PIXELS = (
    "s = Constant <value_ints = [2, 1, 2, 2, 9, 8]> () f = Constant <value_ints = [2, 1, 18, 16]> () "
    "a = Reshape (x, s) t = Transpose <perm = [0, 1, 4, 2, 5, 3]> (a) y = Reshape (t, f)"
)
W33 = {"w": (6, 4, 3, 3), "b": (6,)}


def ints(**values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.int64) for name, value in values.items()}


def floats(**values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.float32) for name, value in values.items()}


# What exporters write, beyond single operators: body, inputs, random weights, constants, version of operators.
CASES: list[tuple[Any, ...]] = [
    ("p = Pad (x, n) y = Conv <pads = [0, 1, 0, 0]> (p, w)", IMAGE, W33, ints(n=[0, 0, 1, 0, 0, 0, 2, 1])),
    *(
        (
            f"p = Pad (x, n) y = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = {ceil}> (p)",
            IMAGE,
            {},
            pads,
        )
        for pads in (ints(n=[0, 0, 1, 1, 0, 0, 1, 1]), ints(n=[0, 0, 0, 1, 0, 0, 0, 0]))
        for ceil in (0, 1)
    ),
    (GELU + "m = Mul (x, p) y = Mul (m, h)", IMAGE),
    (GELU + "m = Mul (x, h) y = Mul (p, m)", IMAGE),
    ("q = Mul (x, x) " + GELU.replace("(x, r)", "(q, r)") + "m = Mul (p, h) y = Mul (m, q)", IMAGE),
    ("s = Softplus (x) g = Greater (x, t) y = Where (g, x, s)", IMAGE, None, floats(t=20)),
    ("m = Mul (x, a) y = Add (m, b)", IMAGE, {"a": (4, 1, 1), "b": (4, 1, 1)}),
    ("f = Flatten (x) y = Gemm (f, w, b)", IMAGE, {"w": (288, 5), "b": (1, 5)}),
    ("m = MatMul (x, w) y = Add (m, b)", {"x": (2, 3, 5)}, {"w": (5, 4), "b": (4,)}),
    ("y = Gather (t, i)", {}, {"t": (3, 4)}, None, 17, "int64[2,5] i"),
    (LN, {"x": (2, 3, 8)}, {"a": (8,), "b": (8,)}),
    (SHUFFLE, IMAGE),
    (PIXELS, IMAGE),
    (DYNAMIC, IMAGE),
    ("y = GatherND (x, i)", {"x": (5, 4, 3)}, None, ints(i=[[[[a, b] for b in (1, -1)]] * 2 for a in (0, 1, 1, 4)])),
    *(
        (f"y = Where (m, {both})", IMAGE, {"c": (8,)}, {"m": np.arange(9).reshape(9, 1) % 2 == 0})
        for both in ("x, c", "c, x")
    ),
    ("t = Transpose <perm = [0, 2, 3, 1]> (x) y = Transpose <perm = [0, 3, 1, 2]> (t)", IMAGE),
    *(
        (f'y, y2, y3 = LSTM <hidden_size = 3, direction = "{way}"> (x, w, r, b, , h, c)', {"x": (5, 2, 4)}, weights)
        for way, n in (("reverse", 1), ("bidirectional", 2))
        for weights in [{"w": (n, 12, 4), "r": (n, 12, 3), "b": (n, 24), "h": (n, 2, 3), "c": (n, 2, 3)}]
    ),
    *(
        (
            f"s = Shape (x) i = Constant <value_int = {axis}> () n = Gather (s, i) two = Constant <value_int = 2> () "
            "q = Equal (n, two) y = If (q) <then_branch = a () => (float ya) { ya = Relu (x) }, "
            "else_branch = b () => (float yb) { c = Sigmoid (x) yb = Neg (c) }>",
            IMAGE,
        )
        for axis in (0, 1)
    ),
    ("y = Relu (x) y2 = Sigmoid (y) y3 = Identity (x)", IMAGE),
]


@pytest.mark.parametrize("target", ["bvlc", "forks", "tensorrt", "ncnn"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0][-60:]} {case[1]}" for case in CASES])
def test_what_exporters_write(case: tuple[Any, ...], target: str, tmp_path: Path) -> None:
    """The target changes the layers, and never the values: tensorrt has no coefficients, and ncnn only rounds up."""
    body, inputs, weights, constants, opset, more = (*case, *(None,) * (6 - len(case)))
    if "ceil_mode = 1" in body and (version := metadata.version("onnxruntime")) < "1.32":
        pytest.skip(f"onnxruntime {version} fuses a Pad and an AveragePool that rounds up wrongly; 1.32 does not")
    model = model_of(body, {} if more else inputs, weights, opset or 17, constants)
    if more:  # an input of integers
        kind, dims, name = re.fullmatch(r"(\w+)\[(.*)] (\w+)", more).groups()  # type: ignore[union-attr]
        helper = pytest.importorskip("onnx").helper
        shape = [int(dim) for dim in dims.split(",")]
        model.graph.input.append(helper.make_tensor_value_info(name, getattr(helper.TensorProto, kind.upper()), shape))
    made, path = converted(tmp_path, model, target)
    assert largest_difference(made, path) <= 1e-5
    if target == "bvlc":
        assert not [layer.type for layer in made.net.layer if getattr(registered(layer.type), "fork", None)]


REFUSED = [
    ("y = Erf (x)", "error function", "use nn.GELU"),
    ("y, i = TopK (x, k)", "chooses values by their size", "end the net before it by --cut"),
    ("y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", "gaps in its windows", "use dilation 1"),
    ('y = Einsum <equation = "nchw->nc"> (x)', "product of two blobs", "write it by MatMul"),
    ("y = Sin (x)", "no such function", "make what it computes a constant"),
    ("y = Conv (x, x)", "weights depend on the input", "make the weights constants"),
    (
        "s = Softmax (x) t = Transpose <perm = [0, 1, 3, 2]> (x) y = MatMul (s, t)",
        "as attention does",
        "by --forks",
    ),
    ("y = LRN <size = 4> (x)", "over 4 channels", "use an odd number"),
    ("y = Frobnicate (x)", "Frobnicate", ""),
]


@pytest.mark.parametrize(("body", "reason", "remedy"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_is_refused(body: str, reason: str, remedy: str, tmp_path: Path) -> None:
    model = model_of(body, IMAGE, constants=ints(k=[2]))
    with pytest.raises(FcaffeError) as caught:
        converted(tmp_path, model)
    message = str(caught.value)
    assert reason in message and remedy in message and "\n" not in message
    assert f'node "{model.graph.node[-1].name}"' in message or "Frobnicate" in message


L2 = "n = ReduceL2 <axes = [1]> (x) c = Clip (n, e) d = Expand (c, s) y = Div (x, d)"
SQUARES = "n = ReduceSumSquare <axes = [1]> (x) c = Add (n, e) d = Sqrt (c) y = Div (x, d)"


@pytest.mark.parametrize(
    ("body", "is_norm"),
    [(L2, True), (SQUARES, True), (SQUARES.replace("= [1]", "= [2]"), False), (L2.replace("(n, e)", "(n, f)"), False)],
)
def test_normalize(body: str, is_norm: bool, tmp_path: Path) -> None:
    constants = {**floats(e=1e-12, f=0.5), **ints(s=IMAGE["x"])}
    made, path = converted(tmp_path, model_of(body, IMAGE, constants=constants), "forks")
    assert ([layer.type for layer in made.net.layer][1:] == ["Normalize"]) == is_norm
    assert largest_difference(made, path) <= 1e-6


def test_only_what_an_output_needs_is_refused(tmp_path: Path) -> None:
    body = "e = Erf (x) a = Transpose <perm = [0, 2, 3, 1]> (x) b = Transpose <perm = [0, 3, 1, 2]> (a) y = Relu (b)"
    made, path = converted(tmp_path, model_of(body, IMAGE))
    assert [layer.type for layer in made.net.layer] == ["Input", "ReLU"], "successive transpositions are one"
    assert largest_difference(made, path) == 0


def test_an_open_batch_is_1_and_other_open_axes_need_a_shape(tmp_path: Path) -> None:
    model = model_of("y = Relu (x)", IMAGE)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = "batch"
    assert list(converted(tmp_path, model)[0].net.layer[0].input_param.shape[0].dim) == [1, 4, 9, 8]
    dims[2].dim_param = "height"
    with pytest.raises(FcaffeError, match=r'input "x" is open; give it as --input-shape x:'):
        converted(tmp_path, model)
    made, _ = converted(tmp_path, model, shapes={"x": (3, 4, 7, 8)})
    assert list(made.net.layer[0].input_param.shape[0].dim) == [3, 4, 7, 8]
    for shapes, problem in ({"x": (3, 5, 7, 8)}, "dynamic axes"), ({"z": (1,)}, "no input z"), ({"x": (3,)}, "4 axes"):
        with pytest.raises(FcaffeError, match=problem):
            converted(tmp_path, model, shapes=shapes)


@pytest.mark.parametrize("body", ["y = {0}", "c = Conv (x, w) y = {0}", "c = Conv (x, w) n = {0} y = Add (n, c)"])
def test_merge_bn_leaves_no_batch_norm(body: str, tmp_path: Path) -> None:
    norm = f"BatchNormalization ({'c' if 'Conv' in body else 'x'}, s, b, m, v)"
    ones = floats(v=[0.5, 1, 2, 3], s=[1] * 4, b=[0] * 4)
    model = model_of(body.format(norm), IMAGE, {"m": (4,), "w": (4, 4, 1, 1)}, constants=ones)
    made, path = converted(tmp_path, model, merge=True)
    assert "BatchNorm" not in [layer.type for layer in made.net.layer]
    assert largest_difference(made, path) <= 1e-5


@pytest.mark.parametrize("name", ["alexnet", "crnn_digits", "googlenet", "nin_cifar10", "resnet50", "ssd_shapes"])
def test_models_there_and_back(name: str, tmp_path: Path) -> None:
    """With images of an odd size, and by ONNX Runtime as well.

    SSD without the layers that choose its boxes, and with Permute, a layer of a fork. A CRNN has other layers
    afterwards.
    """
    text = (MODELS / name / "deploy.prototxt").read_text().replace("num_output: 4096", "num_output: 32")
    param = parse_text(text, pb.NetParameter)
    size = param.layer[0].input_param.shape[0].dim
    size[2:] = [size[2] + 3, size[3] + 5]
    kept = [layer for layer in param.layer if layer.type != "DetectionOutput" and "priorbox" not in layer.name]
    del param.layer[:]
    param.layer.extend(kept)
    write_text(tmp_path / "net.prototxt", param)
    net = with_random_weights(
        new_net(read_net_for(str(tmp_path / "net.prototxt"), pb.TEST), cpu_engine(), inference=False)
    )
    write_onnx(tmp_path / "net.onnx", to_onnx(net))
    made = from_onnx(str(tmp_path / "net.onnx"), target=read_target("forks" if name == "ssd_shapes" else "bvlc"))
    made.net.state.phase = pb.TEST
    back, inputs = deploy_net(made.net, made.model), random_inputs(net)
    named = [[node.name for node in one.nodes if node.layer.type != "Split"] for one in (net, back)]
    assert (named[0] == named[1]) == (name != "crnn_digits")
    ours = run_net(net, inputs)
    for theirs, allowed in (run_net(back, inputs), 1e-6), (run_onnx(tmp_path / "net.onnx", inputs), 1e-4):
        assert ours.keys() == theirs.keys()
        assert all(np.abs(ours[blob] - theirs[blob]).max() <= allowed * np.abs(ours[blob]).max() for blob in ours)


def test_the_first_layer_that_differs(tmp_path: Path) -> None:
    model = model_of(
        "a = Conv (x, w) b = Relu (a) c = Conv (b, v) y = Tanh (c)", IMAGE, {"w": (4, 4, 1, 1), "v": (3, 4, 1, 1)}
    )
    made, path = converted(tmp_path, model)
    assert check_net(str(path), made)[1] == ""
    weights = made.model.layers[3].blobs[0]
    weights.data = weights.data * 1.01
    found, first = check_net(str(path), made)
    assert [one.output for one in found] == ["y", "y before its TanH"] and first == "Conv_2"
    assert 1e-4 < found[0].largest < 0.1
