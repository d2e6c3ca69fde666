"""Blobs of files as NumPy arrays, and back, with none of their numbers ever a Python object."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.proto import caffe_pb2 as pb

LARGEST = 2**31 - 1  # bytes that a protobuf message can have
TOO_LARGE = "is larger than a protobuf file can be (2 GiB); set snapshot_format: HDF5 in the solver"
MAX_AXES = 32  # of a blob, as in Caffe

_RAW_TYPES = {pb.BlobBytes.DOUBLE: "<f8", pb.BlobBytes.FLOAT: "<f4", pb.BlobBytes.FLOAT16: "<f2"}
_LEGACY_AXES = ("num", "channels", "height", "width")


@dataclass
class StoredBlob:
    """The values of a blob in a file: arrays of its shape of float32, float64 or (NVIDIA's fork) float16, or None.

    Gradients may be absent; values are, in HDF5, when the blob is shared and another layer owns it.
    """

    shape: tuple[int, ...]
    data: np.ndarray | None
    diff: np.ndarray | None = None
    legacy: bool = False  # the shape stands as num, channels, height and width

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.data, self.diff) if array is not None)


def blob_shape(blob: Any) -> tuple[int, ...]:
    """The extents of a BlobProto; of an older one, always the four of num, channels, height and width."""
    return tuple(getattr(blob, axis) for axis in _LEGACY_AXES) if _is_legacy(blob) else tuple(blob.shape.dim)


def blob_values(blob: Any, which: str = "data") -> np.ndarray:
    """The values of a BlobProto in C order: float32, one axis, read-only.

    `which` is "data" or "diff"; diffs may be absent, and are then an empty array. SnapshotError if the number of values
    is not what the shape says: so nobody allocates for a shape that a damaged file makes up.
    """
    # Serialising and parsing again are two memory copies, in every version of protobuf; most versions make a Python
    # object of each number otherwise.
    values = getattr(stored_blob(pb.BlobBytes.FromString(blob.SerializeToString())), which)
    return np.zeros(0, np.float32) if values is None else values.astype(np.float32, copy=False).reshape(-1)


def stored_blob(blob: Any) -> StoredBlob:
    """The arrays of a BlobBytes, which share its memory. SnapshotError if their size is not what the shape says."""
    axes = len(blob.shape.dim)
    if axes > MAX_AXES:
        raise SnapshotError(f"a blob has {axes} axes, more than {MAX_AXES}; the file is damaged")
    shape = blob_shape(blob)
    data, diff = _values(blob, "data", shape), _values(blob, "diff", shape)
    if data is None:
        raise SnapshotError(f"a blob of shape {shape} holds 0 values of data; the file is damaged")
    return StoredBlob(shape, data, diff, _is_legacy(blob))


def to_blob_proto(array: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """A BlobProto with the shape and values of `array` as float32, and of `diff` if given."""
    diff = None if diff is None else np.asarray(diff, np.float32)
    return stored_to_proto(StoredBlob(array.shape, np.asarray(array, np.float32), diff))


def stored_to_proto(blob: StoredBlob, nvidia: bool = False) -> Any:
    """The BlobProto of a stored blob; float16, for which Caffe has no field, becomes float32.

    For `nvidia` it is the form of that fork, which a BlobProto has among its unknown fields.
    """
    if blob.nbytes > LARGEST:
        raise SnapshotError(f"a blob of shape {blob.shape} {TOO_LARGE}")
    packed = pb.BlobBytes()
    for which in ("data", "diff"):
        values = getattr(blob, which)
        if values is None:
            continue
        if nvidia:
            raw = next(kind for kind, code in _RAW_TYPES.items() if np.dtype(code) == values.dtype)
            setattr(packed, f"raw_{which}_type", raw)
            setattr(packed, f"raw_{which}", np.ascontiguousarray(values, _RAW_TYPES[raw]).tobytes())
        elif values.dtype == np.float64:
            getattr(packed, f"double_{which}").append(np.ascontiguousarray(values, "<f8").tobytes())
        elif values.size:
            getattr(packed, which).append(np.ascontiguousarray(values, "<f4").tobytes())
    proto = pb.BlobProto.FromString(packed.SerializeToString())
    put_shape(proto, blob)
    return proto


def put_shape(proto: Any, blob: StoredBlob) -> None:
    """Set the shape of a BlobProto, in the notation that the blob had."""
    if blob.legacy:
        for axis, extent in zip(_LEGACY_AXES, blob.shape, strict=True):
            setattr(proto, axis, extent)
    elif blob.shape:  # a single number has no shape in Caffe's files
        proto.shape.dim.extend(blob.shape)


def _is_legacy(blob: Any) -> bool:
    return any(blob.HasField(axis) for axis in _LEGACY_AXES)


def _values(blob: Any, which: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """The data or diff of a BlobBytes; None if there is none, though a blob without elements always has data."""
    if doubles := getattr(blob, f"double_{which}"):
        values = _array(_joined(doubles), "<f8")
    elif floats := getattr(blob, which):
        values = _array(_joined(floats), "<f4")
    elif blob.HasField(f"raw_{which}"):
        if not blob.HasField(f"raw_{which}_type"):
            raise SnapshotError(f"a blob of shape {shape} has raw {which} of no known type; the file is damaged")
        values = _array(getattr(blob, f"raw_{which}"), _RAW_TYPES[getattr(blob, f"raw_{which}_type")])
    else:
        values = _unpacked(blob, which)
    if (min(shape, default=0) < 0 or math.prod(shape) != len(values)) and (which == "data" or len(values)):
        raise SnapshotError(f"a blob of shape {shape} holds {len(values)} values of {which}; the file is damaged")
    return values.reshape(shape) if which == "data" or len(values) else None


def _array(content: bytes, code: str) -> np.ndarray:
    size = np.dtype(code).itemsize
    if len(content) % size:
        raise SnapshotError(f"a blob has {len(content)} bytes of {size}-byte numbers; the file is damaged")
    return np.frombuffer(content, code)


def _joined(pieces: Any) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unpacked(blob: Any, which: str) -> np.ndarray:
    """Values that stand one by one, as writers that do not know `packed` have them: unknown fields of a BlobBytes."""
    return np.array(getattr(pb.BlobProto.FromString(blob.SerializeToString()), which), "<f4")
