"""Parameters in and out of a net: from and to model files, and from the training net to a test net."""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.net.blob import Blob
from fcaffe.net.net import Net
from fcaffe.proto import blob_shape, blob_values, to_blob_proto
from fcaffe.proto import caffe_pb2 as pb


def copy_weights(net: Net, model: Any, source: str) -> None:
    """Copy the blobs of a model (NetParameter) into the layers of the same names.

    Layers that the net lacks are logged and passed over; layers that the model lacks keep what they have. Raises
    SnapshotError when numbers or shapes of blobs differ. `source` names the file in errors.
    """
    layers = {node.name: node.layer for node in reversed(net.nodes)}
    for layer_param in model.layer:
        layer = layers.get(layer_param.name)
        if layer is None:
            log.ignoring_source_layer(layer_param.name, sharing=False)
            continue
        if len(layer.blobs) != len(layer_param.blobs):
            raise SnapshotError(
                f'{source}: layer "{layer_param.name}" has {len(layer_param.blobs)} parameter blob(s), in the net it '
                f"has {len(layer.blobs)}; rename the layer to learn it from scratch"
            )
        for index, (blob, stored) in enumerate(zip(layer.blobs, layer_param.blobs, strict=True)):
            copy_blob(blob, stored, f'{source}: param {index} of layer "{layer_param.name}"')


def copy_blob(blob: Blob, stored: Any, what: str) -> None:
    """Copy a BlobProto into a blob of the same shape (an old one's four numbers may have leading ones)."""
    shape = blob_shape(stored)
    legacy = not stored.HasField("shape")
    same = shape == blob.shape or (legacy and shape == (1,) * (4 - len(blob.shape)) + blob.shape)
    if not same:
        raise SnapshotError(
            f"{what}: shape mismatch. Source param shape is {log.shape_string(shape)}; target param shape is "
            f"{log.shape_string(blob.shape)}. To learn this layer's parameters from scratch rather than copying from "
            "a saved net, rename the layer."
        )
    blob.data[...] = blob.xp.asarray(blob_values(stored).reshape(blob.shape))


def share_weights(net: Net, trained: Net) -> None:
    """Let the layers of `net` use the memory of the layers of the same names in `trained`."""
    layers = {node.name: node.layer for node in reversed(net.nodes)}
    for node in trained.nodes:
        layer = layers.get(node.name)
        if layer is None:
            log.ignoring_source_layer(node.name, sharing=True)
            continue
        if [blob.shape for blob in layer.blobs] != [blob.shape for blob in node.layer.blobs]:
            raise layer.error(
                f"cannot share the parameters {[blob.shape for blob in node.layer.blobs]} of the training net's layer "
                f"of the same name: its own have the shapes {[blob.shape for blob in layer.blobs]}"
            )
        for blob, source in zip(layer.blobs, node.layer.blobs, strict=True):
            blob.share_data(source)


def to_proto(net: Net, with_diff: bool = False) -> Any:
    """The net as a model file holds it: every layer's parameters and blobs, Split layers included."""
    model = pb.NetParameter(name=net.name)
    to_numpy = net.context.engine.to_numpy
    for node in net.nodes:
        layer_param = model.layer.add()
        layer_param.CopyFrom(node.layer.param)
        del layer_param.blobs[:]
        for blob in node.layer.blobs:
            diff = to_numpy(blob.diff) if with_diff else None
            layer_param.blobs.append(to_blob_proto(to_numpy(blob.data), diff))
    return model
