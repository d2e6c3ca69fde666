"""What a model file holds, whatever its format."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message

from fcaffe.errors import SnapshotError
from fcaffe.proto import StoredBlob, blob_shape, without_fork_fields
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import put_shape

MOST_BLOBS = 1000  # of a layer
Places = Mapping[str, Sequence[int]]  # of a net: the number of values in each blob of each layer


@dataclass
class StoredLayer:
    """A layer: its LayerParameter, without blobs, and its blobs.

    A LayerParameter with nothing but a name comes from an HDF5 file of Caffe's, which has no more.
    """

    param: Any
    blobs: list[StoredBlob] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.param.name

    def outline(self) -> Any:
        """The LayerParameter with the shapes of the blobs: all but the values."""
        param = pb.LayerParameter()
        param.CopyFrom(self.param)
        for blob in self.blobs:
            put_shape(param.blobs.add(), blob)
        return param


@dataclass
class Model:
    """A net with its weights: a NetParameter without layers, and the layers in order."""

    param: Any
    layers: list[StoredLayer]

    def net(self) -> Any:
        """The NetParameter, with layers, without blobs."""
        net = pb.NetParameter()
        net.CopyFrom(self.param)
        net.ClearField("written")
        net.layer.extend(layer.param for layer in self.layers)
        return net

    def outline(self) -> bytes:
        """The NetParameter with its layers, and their blobs without values, as a file holds it beside the values."""
        net = pb.NetParameter()
        net.CopyFrom(self.param)
        net.layer.extend(layer.outline() for layer in self.layers)
        return bytes(without_fork_fields(net).SerializeToString())

    def checksum(self) -> int | None:
        """A CRC-32 of all values, whatever the file and the order of layers in it; None if a blob has none."""
        crc = 0
        for layer in sorted(self.layers, key=lambda layer: layer.name):
            for blob in layer.blobs:
                if (values := blob.data) is None:
                    return None
                crc = zlib.crc32(np.ascontiguousarray(values, "<f4").data, crc)
        return crc

    def shared(self) -> Iterator[tuple[StoredLayer, int, StoredLayer, int]]:
        """Every blob shared by its name: layer and index, and those of the owner, the first with that name."""
        owners: dict[str, tuple[StoredLayer, int]] = {}
        for layer in self.layers:
            for index, spec in enumerate(layer.param.param):
                if spec.name and owners.setdefault(spec.name, (layer, index))[0] is not layer:
                    yield layer, index, *owners[spec.name]


def check_text(message: Any) -> None:
    """Raise SnapshotError if a string in the message, at any depth, is not UTF-8: protobuf hands it out as bytes."""
    for described, value in message.ListFields():
        if described.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                check_text(inner)
        elif described.type == described.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise SnapshotError(f"{described.full_name} is {text[:40]!r}, which is no text; it is damaged")


class Unread(NamedTuple):
    """In place of an array that stays in its file."""

    shape: tuple[int, ...]


def is_wanted(places: Places | None, layer: StoredLayer, index: int, shape: tuple[int, ...]) -> bool:
    """Whether a net wants a blob of a file: it has a blob of so many values there, or may have one that shares them.

    What it does not want need not be read: a file may claim any number of values. Without `places` all are wanted.
    """
    if places is None:
        return True
    if layer.name not in places:
        return any(spec.name for spec in layer.param.param)
    counts = places[layer.name]
    return index < len(counts) and counts[index] == math.prod(shape)


def keyed(layers: Sequence[StoredLayer]) -> Iterator[tuple[str, StoredLayer]]:
    """Each layer with what stands for it in the names of blobs: its name, or another for a second one of it."""
    taken: set[str] = set()
    for layer in layers:
        key, number = layer.name, 1
        while key in taken:
            number += 1
            key = f"{layer.name}#{number}"
        taken.add(key)
        yield key, layer


def layer_from_outline(outline: Any) -> StoredLayer:
    """The layer of an outline, with blobs that have no values yet."""
    check_text(outline)
    blobs = [StoredBlob(blob_shape(blob), None, legacy=blob.HasField("num")) for blob in outline.blobs]
    outline.ClearField("blobs")
    return StoredLayer(outline, blobs)


def put_values(layer: StoredLayer, values: dict[tuple[int, str], Any]) -> None:
    """Give a layer its arrays, by (index, "data" or "diff"), of which some may be Unread.

    An outline that the layer has says what shapes they are of. Raises SnapshotError when they do not fit.
    """
    count = 1 + max((index for index, _ in values), default=-1)
    if count > MOST_BLOBS:
        raise SnapshotError(f'layer "{layer.name}": {count} blobs are more than a layer can have; the file is damaged')
    for index in range(len(layer.blobs), count):
        known = values.get((index, "data"), values.get((index, "diff")))
        layer.blobs.append(StoredBlob(() if known is None else known.shape, None))
    for (index, which), array in values.items():
        blob = layer.blobs[index]
        if array.shape != blob.shape:
            raise SnapshotError(
                f'layer "{layer.name}": {which} {index} has the shape {array.shape}, not {blob.shape}; '
                "the file is damaged"
            )
        setattr(blob, which, None if isinstance(array, Unread) else array)


def take_shared(model: Model) -> None:
    """Give blobs that lack values, or are not there at all, those of the layer that owns them."""
    for layer, index, owner, owned in model.shared():
        if owned >= len(owner.blobs) or not owner.blobs[owned].has_data:
            continue
        while len(layer.blobs) <= index:
            layer.blobs.append(StoredBlob((), None))
        blob = layer.blobs[index]
        if blob.has_data:
            continue
        values = owner.blobs[owned].data
        assert values is not None
        if not blob.has_diff and not blob.shape:
            blob.shape = values.shape
        if values.size == math.prod(blob.shape):
            blob.data = values.reshape(blob.shape)
