"""The nodes, constants and inputs of an ONNX file.

onnx's checker refuses graphs with cycles, values that two nodes write, and attributes of wrong types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.net.blob import MAX_AXES, MOST_VALUES
from fcaffe.onnx.library import onnx
from fcaffe.onnx.onnx_file import read_model

OLDEST_OPSET, FIRST_CONVERTED = 9, 7  # older ones are converted to the oldest by onnx


@dataclass
class Node:
    """A node of the graph: its operator, with the domain in front if it is not ONNX's own, and its ends by name."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    proto: Any

    def __str__(self) -> str:
        return f'node "{self.name}" ({self.op})'


@dataclass
class Source:
    """The content of an ONNX file: `inputs` have the shapes of the values that a run takes."""

    nodes: list[Node]
    constants: dict[str, np.ndarray]
    inputs: dict[str, tuple[int, ...]]
    integers: set[str]  # inputs of integers, such as words' numbers
    outputs: list[str]
    opset: int
    name: str
    size: int  # bytes of the file and its external data


def load(path: str, shapes: Mapping[str, Sequence[int]]) -> Source:
    """Read the ONNX file at `path`. `shapes` are those of inputs which the file leaves open.

    Raises SnapshotError, one line, for whatever is wrong with it.
    """
    model, size = read_model(path)
    try:
        return _source(model, shapes, size)
    except (SnapshotError, UnreadableError) as problem:
        raise SnapshotError(f"cannot convert {path}: {str(problem)[:600]}") from problem


def _source(model: Any, shapes: Mapping[str, Sequence[int]], size: int) -> Source:
    graph = model.graph
    if model.functions:
        raise SnapshotError("it has local functions; inline them with onnx.inliner.inline_local_functions")
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if FIRST_CONVERTED <= opset < OLDEST_OPSET:
        with asking():
            model = onnx().version_converter.convert_version(model, OLDEST_OPSET)
        graph, opset = model.graph, OLDEST_OPSET
    if opset < OLDEST_OPSET:
        raise SnapshotError(
            f"its operators are of version {opset}; export it with opset_version {OLDEST_OPSET} or newer"
        )
    if not graph.input or not graph.output or graph.sparse_initializer:
        raise SnapshotError("it has no inputs, no outputs or sparse constants, which Caffe's nets cannot have")
    named = (*graph.initializer, *graph.input, *graph.output, *graph.node)
    names = [graph.name, *(one.name for one in named)]
    names += [name for node in graph.node for name in (node.op_type, node.domain, *node.input, *node.output)]
    if wrong := [name for name in names if isinstance(name, bytes)]:  # protobuf returns what is not UTF-8 as bytes
        raise SnapshotError(f"it has the name {wrong[0][:40]!r}, which is no text; the file is damaged")
    for value in (*graph.input, *graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()  # files may leave it out, and the checker misses it
    with asking():
        onnx().checker.check_model(model)
        constants = {tensor.name: array_of(tensor) for tensor in graph.initializer}
        nodes = [node_of(proto) for proto in graph.node]
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    whole = onnx().TensorProto.INT64, onnx().TensorProto.INT32
    integers = {name for name, value in inputs.items() if value.type.tensor_type.elem_type in whole}
    if unknown := set(shapes) - set(inputs):
        raise SnapshotError(
            f"it has no input {', '.join(sorted(unknown))}, for which --input-shape gives a shape; its inputs are "
            f"{', '.join(inputs)}"
        )
    dims = {name: _shape(value, shapes.get(name)) for name, value in inputs.items()}
    outputs = list(dict.fromkeys(value.name for value in graph.output))
    return Source(nodes, constants, dims, integers, outputs, int(opset), graph.name, size)


def node_of(proto: Any) -> Node:
    own = proto.domain in ("", "ai.onnx")
    name = proto.name or next(filter(None, proto.output), proto.op_type)
    if name.startswith("node_"):  # a number of PyTorch's newer exporter, whose weights have the name of the module
        name = next((text.removesuffix(".weight") for text in proto.input if text.endswith(".weight")), name)
    attributes = {one.name: attribute_of(one) for one in proto.attribute}
    op = proto.op_type if own else f"{proto.domain}.{proto.op_type}"
    return Node(op, name, list(proto.input), list(proto.output), attributes, proto)


def attribute_of(attribute: Any) -> Any:
    """The value of an attribute: a number, a text, a list of these, an array, or something that no operator reads."""
    value = onnx().helper.get_attribute_value(attribute)
    if attribute.HasField("t"):
        return array_of(value)
    return value.decode() if isinstance(value, bytes) else value


def array_of(tensor: Any) -> np.ndarray:
    """A constant as float32, int64 or bool. Raises ValueError."""
    return in_known_type(onnx().numpy_helper.to_array(tensor))


def in_known_type(array: np.ndarray) -> np.ndarray:
    """An array as float32, int64 or bool. Raises ValueError."""
    kind = "f" if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else array.dtype.kind
    known = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    if kind not in known:
        raise ValueError(f"values of type {array.dtype} cannot be converted; export the model in float32")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array, known[kind])


def _shape(value: Any, given: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of an input, with a batch of 1 if it is open. Raises SnapshotError."""
    what, how = f'input "{value.name}"', f"; give it as --input-shape {value.name}:1,3,224,224"
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    if given is None and (not dims or min(dims[1:], default=1) < 1):
        raise SnapshotError(f"the shape of its {what} is open{how}" if dims else f"its {what} has no shape{how}")
    if given is not None and dims and len(given) != len(dims):
        raise SnapshotError(f"its {what} has {len(dims)} axes, and --input-shape gives {len(given)}")
    shape = tuple(given) if given is not None else tuple(max(dim, 1) for dim in dims)
    if any(0 < dim != one for dim, one in zip(dims, shape, strict=False)):
        raise SnapshotError(f"its {what} has the shape {tuple(dims)}; export the model with dynamic axes for {shape}")
    if len(shape) > MAX_AXES or math.prod(shape) > MOST_VALUES:
        raise SnapshotError(f"its {what} has the shape {shape}, which no blob can have")
    return shape
