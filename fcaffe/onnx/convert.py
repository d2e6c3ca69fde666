"""Converts files between formats and notations, by the content of the source and the ending of the target."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data import open_database
from fcaffe.data.mean import images_of, mean_image
from fcaffe.errors import ProtoError, SnapshotError, UsageError
from fcaffe.model_files import FORMATS, Model, StoredLayer, read_model, take_shared, write_model
from fcaffe.net.build.filter import filter_net
from fcaffe.net.build.splits import insert_splits
from fcaffe.onnx.library import ToOnnx
from fcaffe.output_files import ARRAY, Kind, replacing, starting
from fcaffe.proto import StoredBlob, parse_text, read_net, write_binary, write_text
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import BLOB, HDF5_MAGIC, MODEL, STATE, binary_class, file_start, is_text, read_blob
from fcaffe.proto.blobs import stored_to_proto
from fcaffe.proto.text import PROTOTXT, text_of
from fcaffe.proto.upgrade import upgrade_net, upgrade_solver
from fcaffe.solvers.snapshot.files import State, is_hdf5_state, read_state, write_state
from fcaffe.tools.numpy_files import load_numpy

_NPY_MAGIC = b"\x93NUMPY"

# Readable kinds: the noun, and the endings of possible targets.
_FORMS: dict[Any, tuple[str, tuple[str, ...]]] = {
    Model: ("model", (".caffemodel", ".h5", ".npz", ".safetensors", ".dcmodel", ".onnx", ".prototxt")),
    State: ("solver state", (".solverstate", ".h5")),
    StoredBlob: ("mean or other blob", (".binaryproto", ".npy")),
    pb.NetParameter: ("net", (".prototxt",)),
    pb.SolverParameter: ("solver", (".prototxt",)),
}


_KINDS = {
    ".prototxt": PROTOTXT,
    ".npy": ARRAY,
    ".binaryproto": BLOB,
    ".solverstate": STATE,
    ".onnx": starting("model (.onnx)", rb"\x08[\x01-\x40]"),  # ir_version
}


def target_kind(path: str) -> Kind:
    """The kind of file that `convert` and `write_model` write to `path`."""
    ending = os.path.splitext(path)[1]
    if ending in FORMATS:
        return Kind(f"model ({ending})", lambda old: FORMATS[ending].recognises(file_start(old)))
    return _KINDS.get(ending, MODEL)


def convert(
    source: str,
    target: str,
    net: str | None = None,
    to: str = "bvlc",
    to_onnx: ToOnnx | None = None,
    check: bool = False,
) -> str:
    """Read `source`, upgrade it to the current notation, and write it as `target`.

    Args:
        source: a file, or the folder of a database, whose mean image is computed.
        target: the new file.
        net: a prototxt. An ONNX file gets this net with the weights of `source`. A model gets the layers, their order
            and their sharing, which HDF5 files of Caffe and ONNX files do not have.
        to: "bvlc"; "nvidia" for a .caffemodel with blobs as in NVIDIA's fork.
        to_onnx: options of an ONNX file.
        check: whether the caller compares both files, which only models allow.

    Returns:
        The kind of the source, in a few words.

    Raises:
        SnapshotError, ProtoError, UsageError: the source is damaged, or cannot be converted to the target.
    """
    if to_onnx is not None and not target.endswith(".onnx"):
        raise UsageError(f"means, scales, orders of channels, folding and opsets are for ONNX files, not for {target}")
    if source.endswith(".onnx"):
        from fcaffe.onnx.files import weights_for  # which loads all layers, and the package onnx

        found, net = weights_for(source, net), net if target.endswith(".onnx") else None
    else:
        found = _read(source)
    noun, endings = _FORMS[type(found)]
    if check and noun != "model":
        raise UsageError(f"--check compares models, and {source} is a {noun}: leave it out")
    ending = next((ending for ending in endings if target.endswith(ending)), None)
    if ending is None:
        raise UsageError(f"{source} is a {noun}, which is written to a file that ends in {' or '.join(endings)}")
    nvidia = to == "nvidia"
    if nvidia and (noun != "model" or ending != ".caffemodel"):
        raise UsageError(f"only a model in a .caffemodel can have the form of NVIDIA's fork, not {target}")
    if net is not None and not isinstance(found, Model):
        raise UsageError(f"--net is for models, and {source} is a {noun}")
    if ending == ".onnx":
        from fcaffe.onnx.files import model_to_onnx

        model_to_onnx(found, source, target, net, to_onnx or ToOnnx())
        return noun
    if net is not None:
        found = described_by(found, net)
    elif ending == ".caffemodel" and not any(layer.param.type for layer in found.layers):
        log.warning(
            f"{source} has only names and blobs of layers, and shared blobs once: give the net as --net if they share "
            "blobs"
        )
    _write(target, found, nvidia)
    return noun


def described_by(model: Model, net: str) -> Model:
    """The model with the layers of a training net: their order, parameters and shared blobs. Raises SnapshotError."""
    param = read_net(net)
    param.state.phase = pb.TRAIN
    stored = {layer.name: layer for layer in model.layers}
    layers = []
    for layer_param in insert_splits(filter_net(param)).layer:
        if not layer_param.HasField("phase"):
            layer_param.phase = pb.TRAIN
        layer = stored.pop(layer_param.name, None)
        if layer is not None:
            layers.append(StoredLayer(layer_param, layer.blobs))
    if left := [layer.name for layer in stored.values() if layer.blobs]:
        raise SnapshotError(f"{net}: this net has no layer {', '.join(left)}, for which the model has blobs")
    made = Model(pb.NetParameter(name=param.name), layers)
    take_shared(made)
    return made


def _read(path: str) -> Any:
    if os.path.isdir(path):
        with log.quiet(), contextlib.closing(open_database(path)) as database:
            mean = mean_image(images_of(database))
        return StoredBlob((1, *mean.shape), mean[np.newaxis], legacy=True)
    start = file_start(path)
    if start.startswith(HDF5_MAGIC):
        return read_state(path) if is_hdf5_state(path) else read_model(path)
    if start.startswith(_NPY_MAGIC):
        return _read_npy(path)
    if start and is_text(start):
        return _read_prototxt(path)
    readers: dict[Any, Callable[[str], Any]] = {pb.SolverState: read_state, pb.BlobProto: read_blob}
    return readers.get(binary_class(path), read_model)(path)


def _write(path: str, found: Any, nvidia: bool) -> None:
    if isinstance(found, State):
        write_state(path, found)
    elif isinstance(found, StoredBlob) and path.endswith(".npy"):
        assert found.data is not None
        image = found.legacy and found.shape[0] == 1
        with replacing(path, "blob", SnapshotError) as temporary, open(temporary, "wb") as file:
            np.save(file, found.data[0] if image else found.data)
    elif isinstance(found, StoredBlob):
        write_binary(path, stored_to_proto(found))
    elif isinstance(found, Model) and not path.endswith(".prototxt"):
        write_model(path, found, nvidia)
    else:
        write_text(path, found.net() if isinstance(found, Model) else found)


def _read_prototxt(path: str) -> Any:
    """Read a net or solver, and upgrade it to the current notation."""
    text = text_of(path)
    try:
        net = parse_text(text, pb.NetParameter, path)
    except ProtoError as no_net:
        try:
            solver = parse_text(text, pb.SolverParameter, path)
        except ProtoError as no_solver:
            raise (no_solver if "solver" in os.path.basename(path) else no_net) from None
        upgrade_solver(solver, path)
        return solver
    upgrade_net(net, path)
    return net


def _read_npy(path: str) -> StoredBlob:
    """Read an array as a blob. An array of three axes is an image, with the legacy shape of means."""
    array = load_numpy(path, "an array")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    shape = (1, *array.shape) if array.ndim == 3 else array.shape
    return StoredBlob(shape, array.reshape(shape), legacy=len(shape) == 4)
