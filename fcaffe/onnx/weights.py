"""Reads the weights of an ONNX file as a Caffe model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.model_files import Model
from fcaffe.net import Layer, Net
from fcaffe.net.weights import to_model
from fcaffe.onnx.library import onnx
from fcaffe.onnx.onnx_file import read_model
from fcaffe.onnx.properties import NET, model_from
from fcaffe.proto import StoredBlob

# Endings of the names of a layer's first and second blob in files of other writers.
_ENDINGS = (("/0", ".weight", "_weight", "_weights", "_w", "_W"), ("/1", ".bias", "_bias", "_b", "_B"))


class OnnxFile:
    """An ONNX file: constants by name, nodes by name and by names of outputs, readers of values, properties.

    Raises SnapshotError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        model, _ = read_model(path)
        self.properties = {entry.key: entry.value for entry in model.metadata_props}
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
    """The model of an ONNX file. From a file that fcaffe wrote, the whole model is restored.

    From other files, the weights of the layers of `net` are read by name. Raises SnapshotError for layers that are
    missing or have other shapes.
    """
    file = OnnxFile(path)
    if NET in file.properties:
        try:
            return model_from(file.properties, file.constants)
        except SnapshotError as problem:
            raise SnapshotError(f"{path}: {problem}") from problem
    if net is None:
        raise SnapshotError(
            f"{path} was not written by fcaffe: give the net whose weights it has as --model, or two files to convert "
            "all of it, OUT.prototxt and OUT.caffemodel"
        )
    model = to_model(net)
    for node, layer in zip(net.nodes, model.layers, strict=True):
        layer.blobs = _blobs(file, net, node.layer, os.fspath(path)) if node.layer.blobs else []
    return model


def _blobs(file: OnnxFile, net: Net, layer: Layer, path: str) -> list[StoredBlob]:
    by_node = list(_by_node(file, net, layer))
    for arrays in (_by_own_names(file, layer), *by_node):
        fitted = [_fitted(array, blob.shape) for array, blob in zip(arrays, layer.blobs, strict=False)]
        if len(arrays) == len(layer.blobs) and all(array is not None for array in fitted):
            return [StoredBlob(array.shape, array) for array in fitted if array is not None]
    wanted = ", ".join(str(blob.shape) for blob in layer.blobs)
    near = [array.shape for array in by_node[0]] if by_node else []
    found = f"the node of this name has {near}" if near else "there is no node and no constant of this name"
    raise SnapshotError(f'{path}: no blobs {wanted} for layer "{layer.name}" ({layer.type}): {found}')


def _by_own_names(file: OnnxFile, layer: Layer) -> list[np.ndarray]:
    names = ([layer.name + ending for ending in endings] for endings in _ENDINGS[: len(layer.blobs)])
    return [file.constants[found] for each in names if (found := next((n for n in each if n in file.constants), ""))]


def _by_node(file: OnnxFile, net: Net, layer: Layer) -> Iterator[list[np.ndarray]]:
    """Yields the constants of the nodes that may be the layer, in Caffe's layout.

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
        yield arrays


def _fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array in the shape of a blob, or None if they differ in more than axes of length 1."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    return np.ascontiguousarray(array, np.float32).reshape(shape)
