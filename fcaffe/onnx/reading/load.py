"""The nodes, constants and inputs of an ONNX file.

onnx's checker refuses graphs with cycles, values that two nodes write, and attributes of wrong types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.net.blob import MAX_AXES, MOST_VALUES
from fcaffe.onnx.library import onnx
from fcaffe.onnx.onnx_file import read_model

OLDEST, CONVERTED = 7, 9  # older operators than the first of these versions are converted to the second by onnx


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
    types: dict[str, int]  # of the inputs, by ONNX's numbers
    outputs: list[str]
    opset: int
    name: str
    size: int  # bytes of the file and its external data
    producer: str  # the program that wrote it

    @property
    def own(self) -> bool:
        return self.producer == "fcaffe"


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
    named = (*graph.initializer, *graph.input, *graph.output, *graph.node)
    names = [graph.name, *(one.name for one in named)]
    names += [name for node in graph.node for name in (node.op_type, node.domain, *node.input, *node.output)]
    if wrong := [name for name in names if isinstance(name, bytes)]:  # protobuf returns what is not UTF-8 as bytes
        raise SnapshotError(f"it has the name {wrong[0][:40]!r}, which is no text; the file is damaged")
    if not graph.input or not graph.output or graph.sparse_initializer:
        raise SnapshotError("it has no inputs, no outputs or sparse constants, which Caffe's nets cannot have")
    if model.functions:
        from onnx.inliner import inline_local_functions

        with asking():
            model = inline_local_functions(model)
    model, opset = _in_known_version(model)
    graph = model.graph
    open_inputs = {value.name for value in graph.input if not value.type.tensor_type.HasField("shape")}
    for value in (*graph.input, *graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()  # files may leave it out, and the checker misses it
    with asking():
        constants = {tensor.name: onnx().numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for tensor in graph.initializer:  # the checker would copy the values, which it does not read
            tensor.CopyFrom(onnx().TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
        onnx().checker.check_model(model)
        nodes = [node_of(proto) for proto in graph.node]
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    if unknown := set(shapes) - set(inputs):
        raise SnapshotError(
            f"it has no input {', '.join(sorted(unknown))}, for which --input-shape gives a shape; its inputs are "
            f"{', '.join(inputs)}"
        )
    dims = {name: _shape(value, shapes.get(name), name in open_inputs) for name, value in inputs.items()}
    types = {name: value.type.tensor_type.elem_type for name, value in inputs.items()}
    if untyped := [name for name, kind in types.items() if kind not in onnx().helper.get_all_tensor_dtypes()]:
        raise SnapshotError(f'its input "{untyped[0]}" has the type {types[untyped[0]]}, which ONNX does not have')
    outputs = list(dict.fromkeys(value.name for value in graph.output))
    return Source(nodes, constants, dims, types, outputs, opset, graph.name, size, model.producer_name)


def _in_known_version(model: Any) -> tuple[Any, int]:
    """The model and its version of ONNX's operators, after onnx has converted old ones. Raises SnapshotError.

    onnx's converter is silently wrong for operands along an axis. Others that it changes get other shapes.
    """
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset >= OLDEST:
        return model, int(opset)
    remedy = f"export it with opset_version {CONVERTED} or newer"
    if opset < 1:
        raise SnapshotError(f"it names no version of ONNX's operators; {remedy}")
    for node in model.graph.node:
        if {"broadcast", "axis"} <= {one.name for one in node.attribute}:
            raise SnapshotError(
                f"{node_of(node)} has an operand along an axis, which onnx converts wrongly from version {opset}; "
                f"{remedy}"
            )
    with asking():
        converted = onnx().version_converter.convert_version(model, CONVERTED)
        old, new = (_inferred(one) for one in (model, converted))
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            raise SnapshotError(
                f'onnx converts its operators of version {opset} wrongly: "{name}" has the shape {old[name]}, and then '
                f"{new[name]}; {remedy}"
            )
    slopes = {node.input[1]: old.get(node.input[0], ()) for node in model.graph.node if node.op_type == "PRelu"}
    for tensor in converted.graph.initializer:  # one for each channel, which onnx does not convert
        if len(tensor.dims) == 1:
            tensor.dims.extend([1] * (len(slopes.get(tensor.name, ())) - 2))
    return converted, CONVERTED


def _inferred(model: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's values, as far as they are known."""
    found = onnx().shape_inference.infer_shapes(model).graph
    return {value.name: dims for value in (*found.input, *found.value_info) if (dims := dims_of(value)) is not None}


def dims_of(value: Any) -> tuple[int, ...] | None:
    """The declared shape of a value, or None if it is open."""
    tensor = value.type.tensor_type
    known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    return tuple(dim.dim_value for dim in tensor.shape.dim) if known else None


def node_of(proto: Any, within: str = "") -> Node:
    """A node. One of a definition of the node `within` is named after that."""
    name = proto.name or next(filter(None, proto.output), proto.op_type)
    if name.startswith("node_"):  # a number of PyTorch's newer exporter, whose weights have the name of the module
        name = next((text.removesuffix(".weight") for text in proto.input if text.endswith(".weight")), name)
    attributes = {one.name: attribute_of(one) for one in proto.attribute}
    op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    name = f"{within}/{proto.op_type.lower()}" if within else name
    return Node(op, name, list(proto.input), list(proto.output), attributes, proto)


def names_read(proto: Any) -> Iterator[str]:
    """The names of the values that a node reads, and the nodes of its graphs."""
    yield from filter(None, proto.input)
    for attribute in proto.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield from (value.name for value in graph.output)
            for node in graph.node:
                yield from names_read(node)


def attribute_of(attribute: Any) -> Any:
    """The value of an attribute: a number, a text, a list of these, an array, or something that no operator reads."""
    value = onnx().helper.get_attribute_value(attribute)
    if attribute.HasField("t"):
        return onnx().numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    return [one.decode() for one in value] if attribute.strings else value


def as_float(array: np.ndarray) -> np.ndarray:
    """A constant in float32. Raises ValueError."""
    if array.dtype.kind not in "fiub" and not array.dtype.name.startswith(("bfloat", "float")):
        raise ValueError(f"values of type {array.dtype} cannot be converted; export the model in float32")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array, np.float32)


def _shape(value: Any, given: Sequence[int] | None, is_open: bool) -> tuple[int, ...]:
    """The shape of an input, with a batch of 1 if it is open. Raises SnapshotError."""
    what, how = f'input "{value.name}"', f"; give it as --input-shape {value.name}:1,3,224,224"
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    if given is None and (is_open or min(dims[1:], default=1) < 1):
        raise SnapshotError(f"its {what} has no shape{how}" if is_open else f"the shape of its {what} is open{how}")
    if given is not None and not is_open and len(given) != len(dims):
        raise SnapshotError(f"its {what} has {len(dims)} axes, and --input-shape gives {len(given)}")
    shape = tuple(given) if given is not None else tuple(max(dim, 1) for dim in dims)
    if any(0 < dim != one for dim, one in zip(dims, shape, strict=False)):
        raise SnapshotError(f"its {what} has the shape {tuple(dims)}; export the model with dynamic axes for {shape}")
    if len(shape) > MAX_AXES or math.prod(shape) > MOST_VALUES:
        raise SnapshotError(f"its {what} has the shape {shape}, which no blob can have")
    return shape
