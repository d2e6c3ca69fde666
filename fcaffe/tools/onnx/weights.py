"""Reads the weights of an ONNX file as a Caffe model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.model_files import Model
from fcaffe.net import Layer, Net
from fcaffe.net.weights import to_model
from fcaffe.proto import StoredBlob
from fcaffe.tools.onnx.library import onnx
from fcaffe.tools.onnx.onnx_file import read_model
from fcaffe.tools.onnx.properties import NET, model_from

# Endings of the names of a layer's first and second blob in files of other writers.
_ENDINGS = (("/0", ".weight", "_weight", "_weights", "_w", "_W"), ("/1", ".bias", "_bias", "_b", "_B"))


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file: constants by name, nodes by name and by names of outputs, readers of values, properties."""

    constants: Mapping[str, np.ndarray]
    nodes: Mapping[str, Any]
    readers: Mapping[str, list[Any]]
    properties: Mapping[str, str]

    def constants_of(self, node: Any) -> list[np.ndarray]:
        return [self.constants[name] for name in node.input if name in self.constants]


def read_onnx(path: str | os.PathLike[str]) -> OnnxFile:
    """Read an ONNX file. Raises SnapshotError."""
    model, _ = read_model(path)
    try:
        with asking():
            to_array = onnx().numpy_helper.to_array
            constants = {tensor.name: to_array(tensor) for tensor in model.graph.initializer}
            for node in model.graph.node:
                if node.op_type == "Constant" and node.attribute[0].name == "value":
                    constants[node.output[0]] = to_array(node.attribute[0].t)
    except UnreadableError as problem:
        raise SnapshotError(f"cannot read {path} as an ONNX file: {problem}") from problem
    nodes: dict[str, Any] = {}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in (node.name, *node.output):
            nodes.setdefault(name, node)
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return OnnxFile(constants, nodes, readers, {entry.key: entry.value for entry in model.metadata_props})


def read_weights(path: str | os.PathLike[str], net: Net | None = None) -> Model:
    """The model of an ONNX file. From a file that fcaffe wrote, the whole model is restored.

    From other files, the weights of the layers of `net` are read by name. Raises SnapshotError for layers that are
    missing or have other shapes.
    """
    file = read_onnx(path)
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
    for arrays in (_by_own_names(file, layer), _by_node(file, layer), _by_statistics(file, net, layer)):
        if len(arrays) != len(layer.blobs):
            continue
        fitted = [_fitted(array, blob.shape) for array, blob in zip(arrays, layer.blobs, strict=True)]
        if all(array is not None for array in fitted):
            return [StoredBlob(array.shape, array) for array in fitted if array is not None]
    wanted = ", ".join(str(blob.shape) for blob in layer.blobs)
    near = [array.shape for array in _by_node(file, layer)]
    found = f"the node of this name has {near}" if near else "there is no node and no constant of this name"
    raise SnapshotError(f'{path}: no blobs {wanted} for layer "{layer.name}" ({layer.type}): {found}')


def _by_own_names(file: OnnxFile, layer: Layer) -> list[np.ndarray]:
    names = ([layer.name + ending for ending in endings] for endings in _ENDINGS[: len(layer.blobs)])
    return [file.constants[found] for each in names if (found := next((n for n in each if n in file.constants), ""))]


def _by_node(file: OnnxFile, layer: Layer) -> list[np.ndarray]:
    """The constants of the node with the layer's name, in Caffe's layout."""
    node = file.nodes.get(layer.name) or next((file.nodes[top] for top in layer.param.top if top in file.nodes), None)
    if node is None:
        return []
    arrays = file.constants_of(node)
    if node.op_type == "BatchNormalization":
        return [*arrays[2:4], np.ones(1, np.float32)]
    if node.op_type == "MatMul" and arrays:
        following = [file.constants_of(reader) for reader in file.readers.get(node.output[0], [])]
        return [arrays[0].T, *(found[0] for found in following if len(found) == 1 and len(layer.blobs) == 2)]
    if node.op_type == "Gemm" and arrays:
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        return [arrays[0] if transposed else arrays[0].T, *arrays[1:]]
    if node.op_type == "Mul" and len(layer.blobs) == 2:
        return [*arrays, *(one for reader in file.readers.get(node.output[0], []) for one in file.constants_of(reader))]
    return arrays


def _by_statistics(file: OnnxFile, net: Net, layer: Layer) -> list[np.ndarray]:
    """The scale and shift of a Scale behind a BatchNorm, which are one node in ONNX."""
    if layer.type != "Scale":
        return []
    for node in net.nodes:
        if node.layer.type == "BatchNorm" and list(node.layer.param.top) == list(layer.param.bottom):
            found = file.nodes.get(node.name)
            if found is not None and found.op_type == "BatchNormalization":
                return file.constants_of(found)[: len(layer.blobs)]
    return []


def _fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array in the shape of a blob, or None if they differ in more than axes of length 1."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    return np.ascontiguousarray(array, np.float32).reshape(shape)
