"""A model in memory, whatever the format of its file."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import Message

from fcaffe.errors import SnapshotError
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import put_shape
from fcaffe.proto.forks import without_fork_fields


@dataclass
class StoredLayer:
    """A layer: its LayerParameter, without blobs, and its blobs.

    A layer of an HDF5 file that Caffe wrote has a LayerParameter with nothing but a name.
    """

    param: Any
    blobs: list[StoredBlob] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.param.name

    def outline(self) -> Any:
        """The LayerParameter with the shapes of the blobs, and without their values."""
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
        """The NetParameter with its layers, without blobs."""
        net = pb.NetParameter()
        net.CopyFrom(self.param)
        net.ClearField("written")
        net.layer.extend(layer.param for layer in self.layers)
        return net

    def outline(self) -> bytes:
        """The serialised NetParameter with its layers and the shapes of their blobs."""
        net = pb.NetParameter()
        net.CopyFrom(self.param)
        net.layer.extend(layer.outline() for layer in self.layers)
        return bytes(without_fork_fields(net).SerializeToString())

    def checksum(self) -> int | None:
        """The CRC-32 of all values, in the order of the layers' names. None if a blob has no values."""
        crc = 0
        for layer in sorted(self.layers, key=lambda layer: layer.name):
            for blob in layer.blobs:
                if (values := blob.data) is None:
                    return None
                crc = zlib.crc32(np.ascontiguousarray(values, "<f4").data, crc)
        return crc

    def shared(self) -> Iterator[tuple[StoredLayer, int, StoredLayer, int]]:
        """Yields every shared blob, as layer and index, with its owner: the first layer and index of the same name."""
        owners: dict[str, tuple[StoredLayer, int]] = {}
        for layer in self.layers:
            for index, spec in enumerate(layer.param.param):
                if spec.name and owners.setdefault(spec.name, (layer, index))[0] is not layer:
                    yield layer, index, *owners[spec.name]


def check_text(message: Any) -> None:
    """Raise SnapshotError if a string in the message, at any depth, is not UTF-8. protobuf returns it as bytes."""
    for described, value in message.ListFields():
        if described.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                check_text(inner)
        elif described.type == described.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise SnapshotError(f"{described.full_name} is {text[:40]!r}, which is no text; it is damaged")


def take_shared(model: Model) -> None:
    """Give each shared blob without values those of its owner."""
    for layer, index, owner, owned in model.shared():
        values = owner.blobs[owned].data if owned < len(owner.blobs) else None
        if values is None:
            continue
        while len(layer.blobs) <= index:
            layer.blobs.append(StoredBlob((), None))
        blob = layer.blobs[index]
        if blob.data is not None:
            continue
        if blob.diff is None and not blob.shape:
            blob.shape = values.shape
        if values.size == math.prod(blob.shape):
            blob.data = values.reshape(blob.shape)
