"""Reads an ONNX file that may be damaged or hostile.

onnx's checker refuses graphs with cycles, values that two nodes write, attributes of wrong types and external data
outside of the model's folder. Nothing is allocated by a size that the file merely claims.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking, read_input, reading
from fcaffe.net.blob import MAX_AXES, MOST_VALUES
from fcaffe.tools.onnx.library import onnx

OLDEST_OPSET = 9
ROOM = 4, 16 << 20  # memory for what a file does not hold itself: so many times its size, and bytes more
ENTRY = 100  # bytes of memory for a string or message of the file
# The fields of ModelProto, GraphProto, NodeProto and ValueInfoProto that have many parts, by their numbers.
_NODES: dict[int, Any] = {5: {5: {}}}
_VALUES: dict[int, Any] = {2: {1: {2: {1: {}}}}}
_FIELDS: dict[int, Any] = {
    7: {1: _NODES, 5: {}, 11: _VALUES, 12: _VALUES, 13: _VALUES, 15: {1: {}, 2: {}}},
    25: {7: _NODES},
}


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
    with reading(path, SnapshotError, "ONNX file"):
        content = read_input(path)
    try:
        with asking():
            if _entries(memoryview(content), _FIELDS, len(content)) * ENTRY > ROOM[0] * len(content) + ROOM[1]:
                raise SnapshotError("it has more parts than any model of its size; it is damaged")
            model = onnx().ModelProto.FromString(content)
        folder = os.path.dirname(os.path.abspath(path))
        size = len(content)
        del content
        files: dict[str, int] = {}
        for tensor in _tensors(model.graph):
            size += _with_external_data(tensor, folder, files)
        return _source(model, shapes, size)
    except (SnapshotError, UnreadableError) as problem:
        raise SnapshotError(f"cannot convert {path}: {str(problem)[:600]}") from problem


def _entries(message: memoryview, fields: dict[int, Any], most: int) -> int:
    """The number of strings and messages in a serialised message, and in its fields of these numbers; `most` at most.

    An empty one takes two bytes in the file, and about a hundred in memory.
    """
    at = count = 0
    while at < len(message) and count < most:
        tag, at = _varint(message, at)
        size, at = _varint(message, at) if tag & 7 in (0, 2) else (0, at + {1: 8, 5: 4}.get(tag & 7, len(message)))
        if tag & 7 == 2:
            inner = fields.get(tag >> 3)
            count += 1 + (_entries(message[at : at + size], inner, most - count) if inner is not None else 0)
            at += size
    return count


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset behind it."""
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _with_external_data(tensor: Any, folder: str, left: dict[str, int]) -> int:
    """Load the external data of a tensor, if it has any, and return their size. Raises SnapshotError.

    `left` is how many bytes of each file may still be loaded: those of each file twice.
    """
    if tensor.data_location != onnx().TensorProto.EXTERNAL:
        return 0
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, home = str(entries.get("location", "")), os.path.realpath(folder)
    with asking():
        path = os.path.realpath(os.path.join(folder, location))
    if os.path.isabs(location) or not path.startswith(os.path.join(home, "")) or not os.path.isfile(path):
        raise SnapshotError(f'constant "{tensor.name}" is in "{location}", which is no file in the folder of the model')
    size = os.path.getsize(path)
    with asking():
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", size - offset))
    if min(offset, length) < 0 or offset + length > size:
        raise SnapshotError(f'constant "{tensor.name}": {location} has {size} bytes, not {offset} + {length}')
    left[path] = left.get(path, 2 * size) - length
    if left[path] < 0:
        raise SnapshotError(f"its constants are the same values of {location} many times; export each once")
    with open(path, "rb") as file:
        file.seek(offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = onnx().TensorProto.DEFAULT
    del tensor.external_data[:]
    return length


def _source(model: Any, shapes: Mapping[str, Sequence[int]], size: int) -> Source:
    graph = model.graph
    if model.functions:
        raise SnapshotError("it has local functions; inline them with onnx.inliner.inline_local_functions")
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
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
        nodes = [_node(proto) for proto in graph.node]
    inputs, integers = {}, set()
    for value in graph.input:
        if value.name in constants:
            continue
        inputs[value.name] = value
        if value.type.tensor_type.elem_type in (onnx().TensorProto.INT64, onnx().TensorProto.INT32):
            integers.add(value.name)
    if unknown := set(shapes) - set(inputs):
        raise SnapshotError(
            f"it has no input {', '.join(sorted(unknown))}, for which --input-shape gives a shape; its inputs are "
            f"{', '.join(inputs)}"
        )
    dims = {name: _shape(value, shapes.get(name)) for name, value in inputs.items()}
    outputs = list(dict.fromkeys(value.name for value in graph.output))
    return Source(nodes, constants, dims, integers, outputs, int(opset), graph.name, size)


def _node(proto: Any) -> Node:
    own = proto.domain in ("", "ai.onnx")
    name = proto.name or next(filter(None, proto.output), proto.op_type)
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
    if not tensor.HasField("raw_data") and math.prod(tensor.dims) > tensor.ByteSize() * 8:
        raise ValueError(f'constant "{tensor.name}" lacks values')
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
