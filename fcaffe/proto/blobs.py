"""Converts between blobs in files and NumPy arrays, without a Python object for each number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from fcaffe.errors import SnapshotError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.wire import key, varint

LARGEST = 2**31 - 1  # bytes that a protobuf message can have
TOO_LARGE = "is larger than a protobuf file can be (2 GiB); set snapshot_format: HDF5 in the solver"
MAX_AXES = 32  # of a blob, as in Caffe

_RAW_TYPES = {pb.BlobBytes.DOUBLE: "<f8", pb.BlobBytes.FLOAT: "<f4", pb.BlobBytes.FLOAT16: "<f2"}
_LEGACY_AXES = ("num", "channels", "height", "width")
_FIXED32 = 5  # protobuf's code for a field of four bytes
_NUMBERS = {name: field.number for name, field in pb.BlobBytes.DESCRIPTOR.fields_by_name.items()}


@dataclass
class StoredBlob:
    """A blob of a file: values and gradients of its shape, as float32, float64 or (NVIDIA's fork) float16.

    Either may be None: a blob without gradients, or a shared blob that HDF5 stores with another layer.
    """

    shape: tuple[int, ...]
    data: np.ndarray | None
    diff: np.ndarray | None = None
    legacy: bool = False  # the file gives the shape as num, channels, height and width

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in (self.data, self.diff) if values is not None)


def blob_shape(blob: Any) -> tuple[int, ...]:
    """The shape of a BlobProto. An older one always has four axes: num, channels, height and width."""
    return tuple(getattr(blob, axis) for axis in _LEGACY_AXES) if _is_legacy(blob) else tuple(blob.shape.dim)


def stored_blob(blob: Any) -> StoredBlob:
    """The StoredBlob of a BlobBytes, whose arrays are views of the message.

    Raises SnapshotError if their size does not fit the shape.
    """
    axes = len(blob.shape.dim)
    if axes > MAX_AXES:
        raise SnapshotError(f"a blob has {axes} axes, more than {MAX_AXES}; the file is damaged")
    shape = blob_shape(blob)
    data, diff = (_values(blob, which, shape) for which in ("data", "diff"))
    if data is None:
        raise SnapshotError(f"a blob of shape {shape} holds 0 values of data; the file is damaged")
    return StoredBlob(shape, data, diff, _is_legacy(blob))


def to_blob_proto(array: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """A BlobProto with the shape and values of `array` as float32, and of `diff` if given."""
    diff = None if diff is None else np.asarray(diff, np.float32)
    return stored_to_proto(StoredBlob(array.shape, np.asarray(array, np.float32), diff))


def stored_to_proto(blob: StoredBlob, nvidia: bool = False) -> Any:
    """The BlobProto of a stored blob; see `encoded`. The fields of NVIDIA's fork are unknown fields of the message."""
    return pb.BlobProto.FromString(b"".join(encoded(blob, nvidia)))


def encoded(blob: StoredBlob, nvidia: bool = False) -> list[bytes | memoryview]:
    """The serialised BlobProto of a stored blob, in pieces. Those of numbers are views of the arrays.

    float16 becomes float32, since Caffe has no field for it. With `nvidia`, raw data as in NVIDIA's fork.
    """
    if blob.nbytes > LARGEST:
        raise SnapshotError(f"a blob of shape {blob.shape} {TOO_LARGE}")
    outline = pb.BlobBytes()
    put_shape(outline, blob)
    pieces: dict[int, list[bytes | memoryview]] = {
        1 if blob.legacy else _NUMBERS["shape"]: [outline.SerializeToString()]
    }
    for which, values in (("data", blob.data), ("diff", blob.diff)):
        if values is None:
            continue
        if nvidia:
            kinds = (kind for kind, code in _RAW_TYPES.items() if np.dtype(code) == values.dtype)
            kind = next(kinds, pb.BlobBytes.FLOAT)
            name, code, kind_name = f"raw_{which}", _RAW_TYPES[kind], f"raw_{which}_type"
            pieces[_NUMBERS[kind_name]] = [pb.BlobBytes(**{kind_name: kind}).SerializeToString()]
        elif values.size:
            name, code = (f"double_{which}", "<f8") if values.dtype == np.float64 else (which, "<f4")
        else:
            continue
        content = np.ascontiguousarray(values, code).reshape(-1).view(np.uint8).data
        pieces[_NUMBERS[name]] = [key(_NUMBERS[name]), varint(len(content)), content]
    return [piece for number in sorted(pieces) for piece in pieces[number]]


def field_of_blob(number: int, blob: StoredBlob, nvidia: bool = False) -> list[bytes | memoryview]:
    """The serialised field of this number with a blob, in pieces; see `encoded`."""
    pieces = encoded(blob, nvidia)
    return [key(number), varint(sum(map(len, pieces))), *pieces]


def put_shape(proto: Any, blob: StoredBlob) -> None:
    """Set the shape of a BlobProto, in the notation of the file that the blob is from."""
    if blob.legacy:
        for axis, extent in zip(_LEGACY_AXES, blob.shape, strict=True):
            setattr(proto, axis, extent)
    elif blob.shape:  # a single number has no shape in Caffe's files
        proto.shape.dim.extend(blob.shape)


def _is_legacy(blob: Any) -> bool:
    return any(blob.HasField(axis) for axis in _LEGACY_AXES)


def _values(blob: Any, which: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """The data or diff of a BlobBytes, or None. A blob without elements always has data."""
    for name in (f"double_{which}", which, f"raw_{which}"):
        stored = getattr(blob, name)
        content = stored if isinstance(stored, bytes) else b"".join(stored)  # the same object if there is one piece
        if not content:
            continue
        dtype = np.dtype("<f8" if name.startswith("double") else "<f4")
        if name.startswith("raw"):
            if not blob.HasField(f"{name}_type"):
                raise SnapshotError(f"a blob of shape {shape} has raw {which} of no known type; the file is damaged")
            dtype = np.dtype(_RAW_TYPES[getattr(blob, f"{name}_type")])
        if len(content) % dtype.itemsize:
            raise SnapshotError(f"a blob has {len(content)} bytes of {dtype.itemsize}-byte numbers; it is damaged")
        values = np.frombuffer(content, dtype)
        break
    else:
        # not packed, as some writers write them
        unknown: Any = UnknownFieldSet(blob)
        single = [each.data for each in unknown if (each.field_number, each.wire_type) == (_NUMBERS[which], _FIXED32)]
        values = np.array(single, "<u4").view("<f4")
    if (min(shape, default=0) < 0 or math.prod(shape) != values.size) and (which == "data" or values.size):
        raise SnapshotError(f"a blob of shape {shape} holds {values.size} values of {which}; the file is damaged")
    return values.reshape(shape) if which == "data" or values.size else None
