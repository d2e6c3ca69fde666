"""Reads the weights of an ONNX file as a Caffe model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.model_files import Model
from fcaffe.net import Layer, Net
from fcaffe.net.weights import to_model
from fcaffe.onnx.library import onnx
from fcaffe.onnx.onnx_file import read_model
from fcaffe.onnx.reading.convert import from_onnx
from fcaffe.onnx.writing.graph import Graph, Step, writer_of
from fcaffe.proto import StoredBlob

# Endings of the names of a layer's first and second blob in files of other writers.
_ENDINGS = (("/0", ".weight", "_weight", "_weights", "_w", "_W"), ("/1", ".bias", "_bias", "_b", "_B"))


# Attributes that weights follow from, and those of training.
_UNCOMPARED = {"kernel_shape", "transA", "transB", "momentum", "training_mode", "spatial", "is_test", "consumed_inputs"}


class OnnxFile:
    """An ONNX file: constants by name, nodes by name and by names of outputs, readers of values.

    Raises SnapshotError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        model, _ = read_model(path)
        self.nodes: dict[str, Any] = {}
        self.readers: dict[str, list[Any]] = {}
        to_array = onnx().numpy_helper.to_array
        try:
            with asking():
                self.constants = {tensor.name: to_array(tensor) for tensor in model.graph.initializer}
                for node in model.graph.node:
                    if node.op_type == "Constant" and node.attribute[0].name == "value":
                        self.constants[node.output[0]] = to_array(node.attribute[0].t)
        except UnreadableError as problem:
            raise SnapshotError(f"cannot read {path} as an ONNX file: {problem}") from problem
        for node in model.graph.node:
            for name in (node.name, *node.output):
                self.nodes.setdefault(name, node)
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def constants_of(self, node: Any) -> list[np.ndarray]:
        return [self.constants[name] for name in node.input if name in self.constants]


def read_weights(path: str | os.PathLike[str], net: Net | None = None) -> Model:
    """The weights of the layers of `net` by name, or without one the model of the net that the file is converted to.

    Raises SnapshotError for layers that are missing or have other shapes, and NetError as `from_onnx`.
    """
    if net is None:
        return from_onnx(os.fspath(path)).model
    file = OnnxFile(path)
    model = to_model(net)
    for node, layer in zip(net.nodes, model.layers, strict=True):
        layer.blobs = _blobs(file, net, node.layer, os.fspath(path)) if node.layer.blobs else []
    return model


def _blobs(file: OnnxFile, net: Net, layer: Layer, path: str) -> list[StoredBlob]:
    by_node = list(_by_node(file, net, layer))
    for proto, arrays in ((None, _by_own_names(file, layer)), *by_node):
        fitted = [_fitted(array, blob.shape) for array, blob in zip(arrays, layer.blobs, strict=False)]
        if len(arrays) == len(layer.blobs) and all(array is not None for array in fitted):
            if proto is not None:
                _compare_attributes(proto, net, layer)
            return [StoredBlob(array.shape, array) for array in fitted if array is not None]
    wanted = ", ".join(str(blob.shape) for blob in layer.blobs)
    near = [array.shape for array in by_node[0][1]] if by_node else []
    found = f"the node of this name has {near}" if near else "there is no node and no constant of this name"
    raise SnapshotError(f'{path}: no blobs {wanted} for layer "{layer.name}" ({layer.type}): {found}')


def _by_own_names(file: OnnxFile, layer: Layer) -> list[np.ndarray]:
    names = ([layer.name + ending for ending in endings] for endings in _ENDINGS[: len(layer.blobs)])
    return [file.constants[found] for each in names if (found := next((n for n in each if n in file.constants), ""))]


def _by_node(file: OnnxFile, net: Net, layer: Layer) -> Iterator[tuple[Any, list[np.ndarray]]]:
    """Yields the nodes that may be the layer, and their constants in Caffe's layout.

    These have the name of the layer or of a top. A Scale behind a BatchNorm is one node with it. A bias may be the
    constant of a node behind.
    """
    normalized = [
        node.name
        for node in net.nodes
        if node.layer.type == "BatchNorm"
        and layer.type == "Scale"
        and list(node.layer.param.top) == list(layer.param.bottom)
    ]
    for name in (layer.name, *layer.param.top, *normalized):
        if (node := file.nodes.get(name)) is None:
            continue
        arrays = file.constants_of(node)
        if node.op_type == "BatchNormalization":
            arrays = [*arrays[2:4], np.ones(1)] if layer.type == "BatchNorm" else arrays[: len(layer.blobs)]
        elif node.op_type in ("MatMul", "Gemm") and not any(one.name == "transB" and one.i for one in node.attribute):
            arrays[:1] = [array.T for array in arrays[:1]]
        if len(arrays) < len(layer.blobs):
            behind = [file.constants_of(reader) for reader in file.readers.get(node.output[0], [])]
            arrays += [found[0] for found in behind if len(found) == 1]
        yield node, arrays


def _compare_attributes(proto: Any, net: Net, layer: Layer) -> None:
    """Warn of attributes of a node that the layer, as it is written in ONNX, has otherwise."""
    node, graph = next(one for one in net.nodes if one.layer is layer), Graph()
    parameters = [graph.constant(np.zeros(blob.shape, np.float32), "blob") for blob in layer.blobs]
    writer_of(layer)(Step(graph, node, [str(index) for index in node.bottom_ids], parameters))
    own = next((one for one in graph.nodes if one.op_type == proto.op_type), None)
    if own is None:
        return
    theirs, ours = _attributes(proto), _attributes(own)
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            log.warning(
                f'node "{proto.name or proto.output[0]}" ({proto.op_type}) has {name} {theirs.get(name, "unset")}, and '
                f'layer "{layer.name}" has {ours.get(name, "none")}: set it in the net, or the values differ'
            )


def _attributes(proto: Any) -> dict[str, Any]:
    """The attributes that are not at their defaults, but for those that follow from weights or from each other."""
    schema = onnx().defs.get_schema(proto.op_type)
    values = {
        name: onnx().helper.get_attribute_value(one.default_value)
        for name, one in schema.attributes.items()
        if one.default_value.type
    }
    values |= {one.name: onnx().helper.get_attribute_value(one) for one in proto.attribute}
    plain = {"pads": 0, "strides": 1, "dilations": 1}
    return {
        name: value
        for name, value in values.items()
        if name not in _UNCOMPARED and not (name in plain and set(value) == {plain[name]})
    }


def _fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array in the shape of a blob, or None if they differ in more than axes of length 1."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    return np.ascontiguousarray(array, np.float32).reshape(shape)
