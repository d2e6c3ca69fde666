"""A net with its weights as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.errors import NetError, SnapshotError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.net import Blob, Net
from fcaffe.net.node import Node
from fcaffe.onnx.library import OPSET, onnx
from fcaffe.onnx.writing import convolution, elementwise, normalization, pooling, recurrent, refused, shape  # noqa: F401
from fcaffe.onnx.writing.graph import Graph, Step, write
from fcaffe.onnx.writing.preprocessing import Preprocessing
from fcaffe.output_files import replacing
from fcaffe.proto.blobs import LARGEST

_OPEN = {"Filter", "DetectionOutput"}  # types with tops whose sizes depend on values


def to_onnx(net: Net, preprocessing: Preprocessing | None = None, opset: int = OPSET) -> Any:
    """The ModelProto of a net in phase TEST: inputs and outputs have the names of its blobs, weights are `<layer>/<k>`.

    Args:
        net: with its weights.
        preprocessing: operators to put between the first image input and the layers.
        opset: the version of ONNX's operators.

    Raises:
        LayerError: ONNX has no operators for a layer.
    """
    helper, graph = onnx().helper, Graph(opset=opset)
    values: dict[int, str] = {}  # by index of blob: the name of its present value
    owners = {id(blob): parameter.blob for parameter in net.parameters.owned for blob in parameter.sharers}
    for i in net.input_ids:
        values[i] = graph.value(net.blob_names[i])
    inputs = [_info(values[i], net.blobs[i].shape) for i in net.input_ids]
    if preprocessing is not None:
        first = next((i for i in net.input_ids if len(net.blobs[i].shape) == 4), None)
        if first is None:
            raise NetError(
                "mean, scale and order of channels need an input of four axes (N, C, H, W), and the net has none"
            )
        values[first] = preprocessing.write(graph, values[first], net.blobs[first].shape)
    names: dict[int, str] = {}  # of constants, by blob
    for node in net.nodes:
        if node.layer.type == "Input":
            continue
        parameters = [_parameter(graph, node, index, owners, names) for index in range(len(node.layer.blobs))]
        tops = write(Step(graph, node, [values[i] for i in node.bottom_ids], parameters))
        values.update(zip(node.top_ids, tops, strict=True))
    known = {name: _info(name, net.blobs[i].shape) for i, name in values.items()}
    outputs = _outputs(graph, net, values)
    if any(node.layer.type in _OPEN for node in net.nodes):
        known = {}
    written = {name for node in graph.nodes for name in node.output} - {value.name for value in outputs}
    used = {name for node in graph.nodes for name in node.input}
    tensors = [onnx().numpy_helper.from_array(array, name) for name, array in graph.constants.items() if name in used]
    inner = [value for name, value in known.items() if name in written]
    made = helper.make_graph(graph.nodes, net.name or "net", inputs, outputs, tensors, value_info=inner)
    opsets = [helper.make_opsetid("", opset)]
    oldest = helper.find_min_ir_version_for(opsets)
    return helper.make_model(made, opset_imports=opsets, producer_name="fcaffe", ir_version=oldest)


def write_onnx(path: str | os.PathLike[str], model: Any) -> None:
    """Check a ModelProto, and write it without the shapes of inner values. Raises SnapshotError.

    onnx infers all types and shapes, and compares them with the net's.
    """
    if model.ByteSize() > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {model.ByteSize()} bytes it is larger than 2 GiB")
    try:
        with asking():
            onnx().checker.check_model(model, full_check=True)
    except UnreadableError as problem:
        raise SnapshotError(f"cannot write {path}: onnx infers other shapes than the net's: {problem}") from problem
    del model.graph.value_info[:]
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        file.write(model.SerializeToString())


def _info(name: str, dims: Sequence[int | str]) -> Any:
    return onnx().helper.make_tensor_value_info(name, onnx().TensorProto.FLOAT, dims)


def _parameter(graph: Graph, node: Node, index: int, owners: dict[int, Blob], names: dict[int, str]) -> str:
    """The name of the constant for a parameter. Layers that share it get the same constant."""
    blob = node.layer.blobs[index]
    owner = owners.get(id(blob), blob)
    key = id(owner if owner.shape == blob.shape else blob)
    if key not in names:
        values = np.ascontiguousarray(node.layer.engine.to_numpy(blob.data))
        names[key] = graph.constant(values.reshape(blob.shape), f"{node.name}/{index}")
    return names[key]


def _outputs(graph: Graph, net: Net, values: dict[int, str]) -> list[Any]:
    """Name the values of the net's outputs like their blobs, and return the descriptions of the outputs."""
    if not net.output_ids:
        raise NetError("the net has no outputs to convert")
    made = {name for node in graph.nodes for name in node.output}
    names: dict[str, str] = {}
    outputs = []
    for i in net.output_ids:
        value, name = values[i], graph.value(net.blob_names[i])
        if value in made and value not in names:
            names[value] = name
        else:  # an input, a constant, or a duplicate output
            graph.add("Identity", [value], [name], name)
        dims: list[int | str] = list(net.blobs[i].shape)
        if dims and any(node.layer.type == "Filter" for node in net.nodes):
            dims[0] = f"samples of {name}"  # the number depends on the data
        if any(node.layer.type == "DetectionOutput" and i in node.top_ids for node in net.nodes):
            dims[2] = f"boxes of {name}"
        outputs.append(_info(name, dims))
    graph.rename(names)
    return outputs
