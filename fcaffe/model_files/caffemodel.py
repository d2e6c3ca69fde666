"""The format .caffemodel: a NetParameter in binary form."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.model_files.model import Model, StoredLayer, check_text
from fcaffe.output_files import replacing
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import check_written, read_binary
from fcaffe.proto.blobs import LARGEST, TOO_LARGE, field_of_blob, stored_blob
from fcaffe.proto.forks import without_fork_fields
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.proto.wire import before_field, key, varint

_BLOBS = pb.LayerParameter.DESCRIPTOR.fields_by_name["blobs"].number
_LAYER_KEY = key(pb.NetParameter.DESCRIPTOR.fields_by_name["layer"].number)
_VALUES = [name for name in pb.BlobBytes.DESCRIPTOR.fields_by_name if "data" in name or "diff" in name]


def read(path: str | os.PathLike[str]) -> Model:
    """Read a .caffemodel of any age and any fork. Of a fork's, only names, types and blobs are read."""
    net = read_binary(path, pb.NetBytes)
    check_written(net, path)
    stored = _take_blobs(net, path)
    param = _net_parameter(net)
    if param is None:
        log.info(f"{path} is of a fork of Caffe: only the names, types and blobs of its layers are taken")
        net.DiscardUnknownFields()
        known = pb.NetBytes()
        known.CopyFrom(net)  # pure-Python protobuf caches lengths
        param = pb.NetParameter.FromString(known.SerializeToString())
        try:
            check_text(param)
        except SnapshotError as error:
            raise SnapshotError(f"{path}: {error}") from None
    upgraded = pb.NetParameter()
    upgraded.CopyFrom(param)
    upgrade_net(upgraded, os.fspath(path))
    if param.layers or param.input:  # otherwise only the rates of BatchNorm differ, which no model needs
        param = upgraded
    layers = []
    for layer in param.layer:
        blobs = [stored[blob.array_index] for blob in layer.blobs]
        layer.ClearField("blobs")
        layers.append(StoredLayer(pb.LayerParameter.FromString(layer.SerializeToString()), blobs))
    param.ClearField("layer")
    return Model(param, layers)


def write(path: str | os.PathLike[str], model: Model, nvidia: bool = False) -> None:
    """Write a .caffemodel layer by layer, which takes little memory. Raises SnapshotError.

    A model of fcaffe's, whose NetParameter has the field `written`, begins and ends with marks. They tell `read` that
    the file is complete.
    """
    size = sum(blob.nbytes for layer in model.layers for blob in layer.blobs)
    if size > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {size} bytes it {TOO_LARGE}")
    with replacing(path, "model", SnapshotError) as temporary, open(temporary, "wb") as file:
        is_marked, param = model.param.HasField("written"), pb.NetParameter()
        param.CopyFrom(without_fork_fields(model.param))
        param.ClearField("written")
        if is_marked:
            file.write(pb.NetParameter(written=pb.BEGUN).SerializeToString())
        file.write(param.SerializeToString())
        for layer in model.layers:
            blobs: list[bytes | memoryview] = []
            for index, blob in enumerate(layer.blobs):
                if blob.data is None:
                    raise SnapshotError(
                        f'cannot write {path}: blob {index} of layer "{layer.name}" has no values. HDF5 stores a '
                        "shared blob once, and this model does not say with which layer. Give fcaffe convert the net "
                        "as --net"
                    )
                blobs += field_of_blob(_BLOBS, blob, nvidia)
            outline = without_fork_fields(layer.param).SerializeToString()
            offset = before_field(outline, _BLOBS)
            whole = [outline[:offset], *blobs, outline[offset:]]
            file.writelines([_LAYER_KEY, varint(sum(map(len, whole))), *whole])
        if is_marked:
            file.write(pb.NetParameter(written=pb.WHOLE).SerializeToString())
        if file.tell() > LARGEST:
            raise SnapshotError(f"cannot write {path}: with {file.tell()} bytes it {TOO_LARGE}")


def _take_blobs(net: Any, path: Any) -> list[StoredBlob]:
    """Move all blobs of a NetBytes into a list. The message keeps their shapes, and their indices in the list."""
    stored: list[StoredBlob] = []
    for name, blobs in _blobs(net):
        for index, blob in enumerate(blobs):
            try:
                stored.append(stored_blob(blob))
            except SnapshotError as error:
                raise SnapshotError(f'{path}: layer "{name}", blob {index}: {error}') from None
            for field in _VALUES:
                blob.ClearField(field)
            blob.array_index = len(stored) - 1
    return stored


def _blobs(net: Any) -> Iterator[tuple[str, Any]]:
    for layer in net.layer:
        yield layer.name, layer.blobs
    for layer in net.layers:
        yield layer.name, layer.blobs
        yield layer.layer.name, layer.layer.blobs


def _net_parameter(net: Any) -> Any:
    """The NetParameter of a NetBytes, or None if it has fields that are not Caffe's.

    Field numbers of forks collide with Caffe's. If some are unknown, the known ones may have another meaning as well.
    """
    try:
        param = pb.NetParameter.FromString(net.SerializeToString())
        check_text(param)
    except (DecodeError, UnicodeDecodeError, SnapshotError):
        return None
    if not param.IsInitialized():
        return None
    known = pb.NetParameter()
    known.CopyFrom(param)
    known.DiscardUnknownFields()
    return param if len(known.SerializeToString()) == len(param.SerializeToString()) else None
