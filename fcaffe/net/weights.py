"""Parameters in and out of a net: from and to models, and from the training net to a test net."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model, StoredLayer, read_model
from fcaffe.net.blob import Array, Blob
from fcaffe.net.build.redistribute import Redistribute
from fcaffe.net.context import Context
from fcaffe.net.net import Net
from fcaffe.net.placements import Shard
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.share import split_batch

BLOCK = 1 << 22  # values of a worker's part that are gathered at a time


def load_weights(net: Net, path: str) -> Model:
    """Copy the model in a file into the layers of the same names (see `copy_weights`), and return it."""
    model = read_model(path)
    copy_weights(net, model, path)
    return model


def copy_weights(net: Net, model: Model, source: str) -> None:
    """Copy the blobs of a model into the layers of the same names.

    Layers that the net lacks are logged and ignored; layers that the model lacks keep their values. Raises
    SnapshotError, and copies nothing, if numbers or shapes of blobs differ.
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
                if values.data is not None or values.shape:
                    what = f'{source}: param {index} of layer "{stored.name}"'
                    _check_shape(net.context.whole_shape(blob), values, what)
        missing = [index for index, (blob, has) in enumerate(pairs) if has.data is None and blob not in shared]
        if len(blobs) != len(layer.blobs) or missing:
            raise SnapshotError(
                f'{source}: layer "{stored.name}" has {_count(stored)} parameter blob(s), in the net it has '
                f"{len(layer.blobs)}; rename the layer to learn it from scratch, or share what the saved net shares"
            )
        copies += [(blob, values) for blob, values in pairs if values.data is not None]
    net.context.engine.make_current()
    context = net.context
    for blob, values in copies:
        target = blob.mutable_data
        if isinstance(blob.placement, Shard):
            context.workers.check_same(f"the values in {source}", np.ascontiguousarray(values.data).tobytes())
        assert values.data is not None
        own = context.part_of(values.data.reshape(context.whole_shape(blob)), blob.placement)
        target[...] = blob.xp.asarray(own, dtype=blob.xp.float32)


def tell_untouched(net: Net, layers: Container[str], source: str) -> None:
    """Name, in one line of the log, the layers whose parameters were in none of the `layers` layers of a model."""
    shared = {sharer for p in net.parameters.owned if p.layer.name in layers for sharer in p.sharers}
    names = [node.name for node in net.nodes if node.name not in layers and not shared.issuperset(node.layer.blobs)]
    if names:
        log.warning(f"{source} has no weights for the layer(s) {', '.join(names)}: they keep their initial ones")


def misfit(net: Net, given: Container[str], source: str) -> str:
    """What is wrong if none of the `given` layers of models is one of the net's with parameters, or ""."""
    own = [node.name for node in net.nodes if node.layer.blobs]
    if not own or any(name in given for name in own):
        return ""
    return (
        f'{source} has weights for no layer of this net, whose first is "{own[0]}": name the weights of this net, or '
        "give its layers the names of the model's (fcaffe summary shows both)"
    )


def _count(layer: StoredLayer) -> int:
    return sum(blob.data is not None or blob.shape != () for blob in layer.blobs)


def _check_shape(shape: tuple[int, ...], stored: StoredBlob, what: str) -> None:
    """The shapes must be the same, but for leading ones among the four numbers of an old file."""
    same = stored.shape == shape or (stored.legacy and stored.shape == (1,) * (4 - len(shape)) + shape)
    if not same:
        raise SnapshotError(
            f"{what}: shape mismatch. Source param shape is {log.shape_string(stored.shape)}; target param shape is "
            f"{log.shape_string(shape)}. To learn this layer's parameters from scratch rather than copying from "
            "a saved net, rename the layer."
        )


def share_weights(net: Net, trained: Net) -> None:
    """Let the layers of `net` use the memory of the layers of the same names in `trained`.

    The weights that are split over the workers are gathered into memory of its own. All workers call this.
    """
    layers = {node.name: node.layer for node in reversed(net.nodes)}
    for node in trained.nodes:
        layer = layers.get(node.name)
        if layer is None:
            log.ignoring_trained_layer(node.name)
            continue
        shapes = [trained.context.whole_shape(blob) for blob in node.layer.blobs]
        if [blob.shape for blob in layer.blobs] != shapes:
            raise layer.error(
                f"cannot share the parameters {shapes} of the training net's layer of the same name, which reads "
                f"{layer.named_shapes(node.bottoms)}: its own have the shapes {[blob.shape for blob in layer.blobs]}; "
                "give the data of both nets one size, or rename the layer"
            )
        for blob, source in zip(layer.blobs, node.layer.blobs, strict=True):
            if blob.data_storage is not source.data_storage:
                net.complete()  # values that the last pass has not materialised, from its weights
            if isinstance(source.placement, Shard):
                whole = gathered(trained.context, source, source.data, everywhere=True)
                blob.mutable_data[...] = blob.xp.asarray(whole)
            else:
                blob.share_data(source)


def gathered(context: Context, blob: Blob, values: Array, everywhere: bool = False) -> Any:
    """An array of host memory with a parameter's values, or one of its histories, of which this worker has its part.

    Worker 0 gets the whole array, block by block, or, `everywhere`, all workers do; else None. All call this.
    """
    shard, workers, values = blob.placement, context.workers, context.engine.to_numpy(values)
    if not isinstance(shard, Shard):
        return values
    has_whole = everywhere or workers.rank == 0
    whole = np.empty(context.whole_shape(blob) if has_whole else (0,) * values.ndim, np.float32)
    own, each = np.moveaxis(values, shard.axis, 0), values.shape[shard.axis] // workers.part(shard.samples).count
    shares = [split_batch(shard.samples, rank, workers.size) for rank in range(workers.size)]
    step = max(1, BLOCK * len(own) // values.size // each)
    for start in range(0, shares[0].count, step):
        blocks = workers.gather(own[each * start : each * (start + step)])
        blocks = workers.broadcast_object(blocks) if everywhere else blocks
        for share, block in zip(shares, blocks or (), strict=False):
            first = each * (share.first + start)
            np.moveaxis(whole, shard.axis, 0)[first : first + len(block)] = block
    return whole if has_whole else None


def to_model(net: Net, with_diff: bool = False) -> Model:
    """The net as a model file holds it, Split layers included. All workers call this, and worker 0 has all values.

    The arrays may be the net's own memory: they are for writing, before the net runs on.
    """

    def stored(blob: Blob) -> StoredBlob:
        diff = gathered(net.context, blob, blob.diff) if with_diff else None
        return StoredBlob(net.context.whole_shape(blob), gathered(net.context, blob, blob.data), diff)

    layers = []
    for node in net.nodes:
        if isinstance(node.layer, Redistribute):
            continue  # a model does not depend on the number of workers
        param = pb.LayerParameter()
        param.CopyFrom(node.layer.param)
        param.ClearField("blobs")
        layers.append(StoredLayer(param, [stored(blob) for blob in node.layer.blobs]))
    return Model(pb.NetParameter(name=net.name, written=pb.WHOLE), layers)
