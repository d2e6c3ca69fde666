"""Parameters in and out of a net: from and to models, and from the training net to a test net."""

from __future__ import annotations

from collections.abc import Container

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.model_files import BlobSizes, Model, StoredLayer, read_model
from fcaffe.net.blob import Blob
from fcaffe.net.net import Net
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb


def load_weights(net: Net, path: str) -> Model:
    """Copy the model in a file into the layers of the same names (see `copy_weights`), and return it."""
    model = read_model(path, blob_sizes(net))
    copy_weights(net, model, path)
    return model


def blob_sizes(net: Net) -> BlobSizes:
    """The number of values in each blob of each layer: what of a model file is worth reading."""
    return {node.name: [blob.count for blob in node.layer.blobs] for node in reversed(net.nodes)}


def copy_weights(net: Net, model: Model, source: str) -> None:
    """Copy the blobs of a model into the layers of the same names.

    Layers that the net lacks are logged and ignored; layers that the model lacks keep their values. Raises
    SnapshotError, and copies nothing, if numbers or shapes of blobs differ. `source` names the file in errors.
    """
    layers = {node.name: node.layer for node in reversed(net.nodes)}
    shared = {blob for parameter in net.parameters.owned for blob in parameter.sharers}
    copies = []
    for stored in model.layers:
        layer = layers.get(stored.name)
        if layer is None:
            log.ignoring_source_layer(stored.name)
            continue
        # HDF5 keeps a shared blob with its owner only.
        blobs = layer.in_own_order(stored.blobs) + [StoredBlob((), None)] * (len(layer.blobs) - len(stored.blobs))
        pairs = list(zip(layer.blobs, blobs, strict=False))
        if len(blobs) == len(layer.blobs):
            for index, (blob, values) in enumerate(pairs):
                if values.has_data or values.shape:  # one that fits nowhere has been left unread
                    _check_shape(blob, values, f'{source}: param {index} of layer "{stored.name}"')
        if len(blobs) != len(layer.blobs) or not shared.issuperset(blob for blob, has in pairs if not has.has_data):
            raise SnapshotError(
                f'{source}: layer "{stored.name}" has {_count(stored)} parameter blob(s), in the net it has '
                f"{len(layer.blobs)}; rename the layer to learn it from scratch"
            )
        copies += [(blob, values) for blob, values in pairs if values.has_data]
    net.context.engine.make_current()
    for blob, values in copies:
        target = blob.data
        if not values.read_into(target) and (data := values.data) is not None:
            target[...] = blob.xp.asarray(data.reshape(blob.shape), dtype=blob.xp.float32)


def tell_untouched(net: Net, given: Container[str], source: str) -> None:
    """Name, in one line of the log, the layers whose parameters were in none of the `given` layers of a model."""
    shared = {sharer for p in net.parameters.owned if p.layer.name in given for sharer in p.sharers}
    names = [node.name for node in net.nodes if node.name not in given and not shared.issuperset(node.layer.blobs)]
    if names:
        log.warning(f"{source} has no weights for the layer(s) {', '.join(names)}: they keep their initial ones")


def _count(layer: StoredLayer) -> int:
    return sum(blob.has_data or blob.shape != () for blob in layer.blobs)


def _check_shape(blob: Blob, stored: StoredBlob, what: str) -> None:
    """The shapes must be the same, but for leading ones among the four numbers of an old file."""
    same = stored.shape == blob.shape or (stored.legacy and stored.shape == (1,) * (4 - len(blob.shape)) + blob.shape)
    if not same:
        raise SnapshotError(
            f"{what}: shape mismatch. Source param shape is {log.shape_string(stored.shape)}; target param shape is "
            f"{log.shape_string(blob.shape)}. To learn this layer's parameters from scratch rather than copying from "
            "a saved net, rename the layer."
        )


def share_weights(net: Net, trained: Net) -> None:
    """Let the layers of `net` use the memory of the layers of the same names in `trained`."""
    layers = {node.name: node.layer for node in reversed(net.nodes)}
    for node in trained.nodes:
        layer = layers.get(node.name)
        if layer is None:
            log.ignoring_trained_layer(node.name)
            continue
        if [blob.shape for blob in layer.blobs] != [blob.shape for blob in node.layer.blobs]:
            raise layer.error(
                f"cannot share the parameters {[blob.shape for blob in node.layer.blobs]} of the training net's layer "
                f"of the same name: its own have the shapes {[blob.shape for blob in layer.blobs]}"
            )
        for blob, source in zip(layer.blobs, node.layer.blobs, strict=True):
            if blob.data_storage is not source.data_storage:
                net.complete()  # values that the last pass has not materialised, from its weights
            blob.share_data(source)


def to_model(net: Net, with_diff: bool = False) -> Model:
    """The net as a model file holds it: every layer's parameters and blobs, Split layers included.

    The arrays may be the net's own memory: they are for writing, before the net runs on.
    """
    to_numpy = net.context.engine.to_numpy
    layers = []
    for node in net.nodes:
        param = pb.LayerParameter()
        param.CopyFrom(node.layer.param)
        param.ClearField("blobs")
        blobs = [
            StoredBlob(blob.shape, to_numpy(blob.data), to_numpy(blob.diff) if with_diff else None)
            for blob in node.layer.blobs
        ]
        layers.append(StoredLayer(param, blobs))
    return Model(pb.NetParameter(name=net.name, written=pb.WHOLE), layers)
