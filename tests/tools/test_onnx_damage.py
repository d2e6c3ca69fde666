"""Damaged and hostile ONNX files: each ends in one clear line, or converts, and takes no memory for what it claims."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fcaffe.errors import FcaffeError, SnapshotError
from fcaffe.onnx.reading.convert import from_onnx
from fcaffe.onnx.reading.graph import readers
from fcaffe.onnx.weights import read_weights
from tests.tools.onnx_graphs import converted, model_of
from tests.tools.random_onnx import Graphs
from tests.tools.test_onnx_reading import IMAGE, ints

onnx = pytest.importorskip("onnx")

HUGE = 2**40
FEW = 32 << 20  # bytes: what reading any file may take


def whole_model() -> Any:
    """A model with nodes of most kinds, all of which can be converted."""
    return model_of(
        "c = Conv <pads = [1, 1, 1, 1], strides = [1, 1]> (x, w, b) n = BatchNormalization (c, b, b, b, v) "
        "r = Relu (n) "
        "q = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) s = Slice (q, s0, s1, ax) p = Pad (s, pads) "
        't = Transpose <perm = [0, 2, 3, 1]> (p) u = Resize <mode = "linear"> (p, , scales) g = GlobalAveragePool (u) '
        "f = Flatten (g) y = Gemm (f, k) sh = Shape (f) i = Constant <value_int = 0> () m = Gather (sh, i) "
        "y2 = Softmax (y) y3 = Relu (t) h = Sigmoid (t) y4 = Mul (t, h)",
        IMAGE,
        {"w": (6, 4, 3, 3), "b": (6,), "v": (6,), "k": (6, 5)},
        constants={
            **ints(s0=[0, 1], s1=[3, 4], ax=[2, 3], pads=[0, 0, 1, 0, 0, 0, 0, 1]),
            "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )


def outcome(path: Path) -> str:
    """The error of a conversion, which is one line, or "" if it converts."""
    try:
        from_onnx(str(path))
    except FcaffeError as error:
        assert "\n" not in str(error) and 20 < len(str(error)) < 1000, error
        assert "fault of fcaffe" not in str(error)
        return str(error)
    return ""


def mutated(content: bytes, dice: random.Random) -> bytes:
    """The content cut, with bits flipped, with bytes that are large numbers, or with parts repeated or exchanged."""
    changed, way = bytearray(content), dice.randrange(5)
    if way == 0:
        return content[: dice.randrange(len(content))]
    for _ in range(dice.randint(1, 4)):
        start = dice.randrange(len(content))
        if way == 1:
            changed[start] ^= 1 << dice.randrange(8)
        elif way == 2:
            changed[start : start + 9] = b"\xff" * 8 + b"\x7f"
        elif way == 3:
            changed[start:start] = content[start : start + dice.randrange(200)]
        else:
            del changed[start : start + dice.randrange(1, 40)]
    return bytes(changed)


def test_damaged_files(tmp_path: Path) -> None:
    dice, content, path = random.Random(7), whole_model().SerializeToString(), tmp_path / "model.onnx"
    path.write_bytes(content)
    assert outcome(path) == ""
    errors = 0
    for _ in range(250):
        path.write_bytes(mutated(content, dice))
        errors += outcome(path) != ""
    assert errors > 125  # many others differ in weights alone


def test_changed_nodes(tmp_path: Path) -> None:
    """Nodes without their work, without some inputs or attributes, with other inputs, numbers and shapes."""
    dice, path = random.Random(3), tmp_path / "model.onnx"
    models = [whole_model(), *(Graphs(seed).model() for seed in range(60))]
    for _ in range(300):
        model = onnx.ModelProto.FromString(dice.choice(models).SerializeToString())
        node, constants, way = dice.choice(model.graph.node), model.graph.initializer, dice.randrange(6)
        attribute = dice.choice([*node.attribute, onnx.AttributeProto()])
        if way == 0:
            node.op_type = dice.choice([node.op_type, "Identity"])
            del node.input[1:], node.attribute[:]
        elif way == 1:
            attribute.ints[:] = dice.choices([*attribute.ints, 0, -1, 7, HUGE], k=dice.randrange(4))
        elif way == 2:
            del node.input[dice.randrange(len(node.input) + 1) :]
        elif way == 3 and node.input:
            node.input[dice.randrange(len(node.input))] = dice.choice(["", "x", *(one.name for one in constants)])
        elif way == 4 and model.graph.input:
            dims = model.graph.input[0].type.tensor_type.shape.dim
            del dims[dice.randrange(len(dims)) :]
        elif way == 5 and constants:
            changed = dice.choice(constants)
            array = onnx.numpy_helper.to_array(changed).ravel()[: dice.randrange(9)].astype(dice.choice(["i8", "f4"]))
            changed.CopyFrom(onnx.numpy_helper.from_array(array, changed.name))
        path.write_bytes(model.SerializeToString())
        outcome(path)


@pytest.mark.parametrize("kind", [AttributeError, IndexError, KeyError, TypeError])
def test_an_error_of_fcaffe_s_own(kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(readers, "Relu", Mock(side_effect=kind("of a reader")))
    with pytest.raises(
        FcaffeError, match=r'node "Relu_0" .*of a reader.*, which is a fault of fcaffe: please report it'
    ):
        converted(tmp_path, model_of("y = Relu (x)", IMAGE))


HOSTILE: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "a constant that is filled": ("f = ConstantOfShape (n) y = Add (x, f)", ints(n=[HUGE, HUGE])),
    "a constant that is expanded": (
        "o = Constant <value_float = 1.0> () f = Expand (o, n) y = Add (x, f)",
        ints(n=[2**33]),
    ),
    "a constant that is repeated": ("f = Tile (n, n) y = Reshape (x, f)", ints(n=[2**34])),
    "a range": ("f = Range (a, b, c) y = Reshape (x, f)", ints(a=0, b=2**45, c=1)),
    "an outer product": (
        "o = ConstantOfShape (n) p = Reshape (o, m) q = Mul (o, p) y = Add (x, q)",
        ints(n=[10**6], m=[-1, 1]),
    ),
    "padding": ("y = Pad (x, n)", ints(n=[0, 0, HUGE, 0, 0, 0, 0, 0])),
    "a size": ('y = Resize <mode = "linear"> (x, , , n)', ints(n=[2, 4, 2**31, 2**31])),
    "repetition": ("y = Tile (x, n)", ints(n=[2**40, 1, 1, 1])),
    "a kernel": (f"y = MaxPool <kernel_shape = [{2**50}, 2]> (x)", {}),
    "asymmetric padding": (f"y = Conv <pads = [{2**33}, 0, 0, 0]> (x, w)", {"w": np.ones((4, 4, 3, 3), np.float32)}),
    "a negative stride": ("y = MaxPool <kernel_shape = [2, 2], strides = [-1, 0]> (x)", {}),
    "a division": ("q = Div (n, m) y = Reshape (x, q)", ints(n=[4], m=[0])),
}


def _changed(change: str) -> Any:
    model = whole_model()
    graph, w = model.graph, next(one for one in model.graph.initializer if one.name == "w")
    if change == "cycle":
        graph.node[0].input[0] = "y4"
    elif change == "two writers":
        graph.node[1].output[0] = "c"
    elif change == "huge constant":
        w.dims[:] = [2**31, 2**31, 3, 3]
    elif change == "typed constant":
        w.data_type = onnx.TensorProto.STRING
    elif change == "huge input":
        for dim in graph.input[0].type.tensor_type.shape.dim:
            dim.dim_value = 2**31
    elif change == "unknown type":
        graph.input[0].type.tensor_type.elem_type = 33
    elif change == "no opset":
        del model.opset_import[:]
    elif change == "sequence input":
        graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    return model


WRONG = [
    "cycle",
    "two writers",
    "huge constant",
    "typed constant",
    "huge input",
    "unknown type",
    "no opset",
    "sequence input",
]


@pytest.mark.parametrize("name", [*HOSTILE, *WRONG])
def test_what_is_refused_takes_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    body, constants = HOSTILE.get(name, ("", {}))
    model = model_of(body, IMAGE, constants=constants) if body else _changed(name)
    path.write_bytes(model.SerializeToString())
    first = outcome(path)  # imports what is needed
    tracemalloc.start()
    try:
        assert outcome(path) == first != ""
        assert tracemalloc.get_traced_memory()[1] < FEW
    finally:
        tracemalloc.stop()


def _external(model: Any, **entries: Any) -> bytes:
    w = next(one for one in model.graph.initializer if one.name == "w")
    w.ClearField("raw_data")
    w.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        w.external_data.add(key=key, value=str(value))
    return bytes(model.SerializeToString())


def test_external_data(tmp_path: Path) -> None:
    model, folder = whole_model(), tmp_path / "model"
    folder.mkdir()
    path, raw = folder / "model.onnx", next(one for one in model.graph.initializer if one.name == "w").raw_data
    for data in (folder / "weights", tmp_path / "outside"):
        data.write_bytes(b"1234" + raw)
    os.symlink(tmp_path / "outside", folder / "link")
    path.write_bytes(_external(whole_model(), location="weights", offset=4, length=len(raw)))
    assert outcome(path) == ""
    for location in ("../outside", str(tmp_path / "outside"), "link", "", ".", "missing", "a\0b"):
        path.write_bytes(_external(whole_model(), location=location, offset=4))
        refusals = "no file in the model's folder", "points outside", "absolute path", "symbolic link"
        assert any(words in outcome(path) for words in refusals)
    for entries in (
        {"offset": 5},
        {"offset": -1},
        {"length": HUGE},
        {"offset": "x"},
        {"length": 12},
        {"offset": 2**70},
    ):
        path.write_bytes(_external(whole_model(), location="weights", **entries))
        assert outcome(path) != ""
    path.write_bytes(_external(whole_model(), location="weights", offset=4, length=len(raw)))
    many = onnx.load(path, load_external_data=False)
    for index in range(20):
        many.graph.initializer.add().CopyFrom(next(one for one in many.graph.initializer if one.name == "w"))
        many.graph.initializer[-1].name = f"w{index}"
    path.write_bytes(many.SerializeToString())
    assert "many times" in outcome(path)
    with pytest.raises(SnapshotError, match="many times"):
        read_weights(path)


@pytest.mark.parametrize("content", [b"", b"\x08", b"no model at all\n", b"\xff" * 1000, b"name: 'net'"])
def test_files_that_are_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert str(path) in outcome(path)
    assert "does not exist" in outcome(tmp_path / "none.onnx")
    assert outcome(tmp_path) != ""
