"""Reads and writes binary files: models (.caffemodel), solver states, means (.binaryproto)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError, EncodeError

from fcaffe.errors import SnapshotError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.files import replacing
from fcaffe.proto.upgrade import upgrade_net

LARGEST = 2**31 - 1  # bytes that a protobuf message can have
_TOO_LARGE = "is larger than a protobuf file can be (2 GiB); set snapshot_format: HDF5 in the solver"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def _holds_layers(net: pb.NetParameter) -> bool:
    """Whether any layer has a name or type; all are looked at, since damaged text shows only then."""
    named = [bool(layer.name or layer.type) for layer in (*net.layer, *net.layers)]
    return any(named) or any(layer.HasField("layer") for layer in net.layers)


class _Kind(NamedTuple):
    """A kind of file. protobuf parses much that is of another kind, so there is a look at what must be in it."""

    noun: str
    holds: Callable[[Any], bool]
    use: str  # where such a file is meant to be given


_KINDS: dict[Any, _Kind] = {
    pb.NetParameter: _Kind(
        "a model (.caffemodel)",
        _holds_layers,
        "give it as --weights",
    ),
    pb.SolverState: _Kind(
        "a solver state (.solverstate)",
        lambda state: state.HasField("iter") and bool(state.learned_net),
        "give it as --snapshot",
    ),
    pb.BlobProto: _Kind(
        "a blob (.binaryproto)",
        lambda blob: bool(blob.data or blob.double_data),
        "it serves as a mean_file",
    ),
}


def read_weights(path: str | os.PathLike[str]) -> pb.NetParameter:
    """The net of a .caffemodel, in the current notation; its blobs keep their older four-number shapes.

    Raises SnapshotError for a file that is missing, cut off or of another kind.
    """
    param = read_binary(path, pb.NetParameter)
    upgrade_net(param, os.fspath(path))
    return param


def read_binary(path: str | os.PathLike[str], message_class: Any) -> Any:
    """The message that a binary file holds. Raises SnapshotError, which says what the file is instead."""
    try:
        size = os.stat(path).st_size
        content = Path(path).read_bytes() if size <= LARGEST else b""
    except FileNotFoundError:
        raise SnapshotError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise SnapshotError(f"{path} is a folder; a file is wanted") from None
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror}") from error
    if size > LARGEST:
        raise SnapshotError(f"{path} has {size} bytes, more than a protobuf file can have; such models are HDF5 (.h5)")
    message = _parse(content, message_class)
    if message is None:
        raise SnapshotError(f"{path} {_diagnosis(content, message_class)}")
    return message


def write_binary(path: str | os.PathLike[str], message: Any) -> None:
    """Writes the message, whole or not at all (SnapshotError)."""
    try:
        content = message.SerializeToString()
    except EncodeError as error:
        raise SnapshotError(f"cannot write {path}: {error}") from error
    if len(content) > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {len(content)} bytes it {_TOO_LARGE}")
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def blob_shape(blob: pb.BlobProto) -> tuple[int, ...]:
    """The extents of a blob; of an older one, always the four of num, channels, height and width."""
    if any(blob.HasField(axis) for axis in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    return tuple(blob.shape.dim)


def blob_values(blob: pb.BlobProto, which: str = "data") -> np.ndarray:
    """The values of a blob in C order: float32, one axis, read-only.

    `which` is "data" or "diff"; diffs may be absent, and are then an empty array. SnapshotError if the number of values
    is not what the shape says: so nobody allocates for a shape that a damaged file makes up.
    """
    # Serialising and parsing again are two memory copies, in every version of protobuf; most versions make a Python
    # object of each number otherwise.
    packed = pb.BlobBytes.FromString(blob.SerializeToString())
    doubles = getattr(packed, f"double_{which}")
    if doubles:
        values = np.frombuffer(doubles, "<f8").astype(np.float32)
    else:
        values = np.frombuffer(getattr(packed, which), "<f4")
    shape = blob_shape(blob)
    if (min(shape, default=0) < 0 or math.prod(shape) != len(values)) and (which == "data" or len(values)):
        raise SnapshotError(f"a blob of shape {shape} holds {len(values)} values of {which}; the file is damaged")
    return values


def to_blob_proto(array: np.ndarray, diff: np.ndarray | None = None) -> pb.BlobProto:
    """A blob with the shape and values of `array` as float32, and of `diff` if given."""
    if 4 * (array.size + (0 if diff is None else diff.size)) > LARGEST:
        raise SnapshotError(f"a blob of shape {array.shape} {_TOO_LARGE}")
    packed = pb.BlobBytes(data=np.ascontiguousarray(array, "<f4").tobytes())
    if diff is not None:
        packed.diff = np.ascontiguousarray(diff, "<f4").tobytes()
    blob = pb.BlobProto.FromString(packed.SerializeToString())
    blob.shape.dim.extend(array.shape)
    return blob


def _parse(content: bytes, message_class: Any) -> Any:
    """The message, or None if this is not one."""
    kind = _KINDS.get(message_class)
    try:
        message = message_class.FromString(content)
        return message if kind is None or kind.holds(message) else None
    except (DecodeError, UnicodeDecodeError):
        return None


def _diagnosis(content: bytes, wanted: Any) -> str:
    noun = _KINDS[wanted].noun if wanted in _KINDS else f"a {wanted.DESCRIPTOR.name}"
    if not content:
        return f"is empty; {noun} is wanted"
    if content.startswith(HDF5_MAGIC):
        return f"is an HDF5 file; {noun} is wanted (HDF5 snapshots have names that end in .h5)"
    if _is_text(content[:4096]):
        return f"is text, perhaps a prototxt; {noun} is wanted"
    for other, kind in _KINDS.items():
        if other is not wanted and _parse(content, other) is not None:
            return f"is {kind.noun}, not {noun}; {kind.use}"
    return f"is damaged or cut off after {len(content)} bytes; copy it again or take an earlier one ({noun} is wanted)"


def _is_text(start: bytes) -> bool:
    return all(byte >= 0x20 or byte in b"\t\n\r\f" for byte in start)
