"""Reads and writes binary files: models (.caffemodel), solver states, means (.binaryproto)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, EncodeError

from fcaffe.errors import SnapshotError
from fcaffe.input_files import open_input, read_input, reading
from fcaffe.output_files import Kind, replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import LARGEST, TOO_LARGE, StoredBlob, field_of_blob, stored_blob
from fcaffe.proto.forks import without_fork_fields
from fcaffe.proto.wire import before_field

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ZIP_MAGIC = b"PK\x03\x04"


def _holds_layers(net: Any) -> bool:
    """Whether any layer has a name or type. All are read, since damaged text raises only then."""
    named = [bool(layer.name or layer.type) for layer in (*net.layer, *net.layers)]
    return any(named) or any(layer.HasField("layer") for layer in net.layers)


class _Kind(NamedTuple):
    """A kind of file. `holds` checks its required content, since protobuf parses many files of other kinds too."""

    noun: str
    holds: Callable[[Any], bool]
    use: str  # how to use such a file


_KINDS = {
    pb.NetBytes: _Kind("a model (.caffemodel)", _holds_layers, "give it as --weights"),
    pb.StateBytes: _Kind(
        "a solver state (.solverstate)",
        lambda state: state.HasField("iter") and bool(state.learned_net),
        "give it as --snapshot",
    ),
    pb.BlobBytes: _Kind(
        "a blob (.binaryproto)",
        lambda blob: bool(blob.data or blob.double_data or (blob.raw_data and blob.HasField("raw_data_type"))),
        "it serves as a mean_file",
    ),
}
_HISTORY = pb.SolverState.DESCRIPTOR.fields_by_name["history"].number
_AS_BYTES = {pb.NetParameter: pb.NetBytes, pb.SolverState: pb.StateBytes, pb.BlobProto: pb.BlobBytes}


def read_binary(path: str | os.PathLike[str], message_class: Any) -> Any:
    """Read a message from a binary file. Raises SnapshotError, which names the kind of the file if it is another.

    A NetBytes, StateBytes or BlobBytes is a NetParameter, SolverState or BlobProto whose numbers are not parsed.
    """
    content = _content(path)
    message = _parse(content, message_class)
    if message is None:
        raise SnapshotError(f"{path} {_diagnosis(content, message_class)}")
    return message


def read_blob(path: str | os.PathLike[str]) -> StoredBlob:
    """The blob in a .binaryproto. Raises SnapshotError."""
    message = read_binary(path, pb.BlobBytes)
    try:
        return stored_blob(message)
    except SnapshotError as problem:
        raise SnapshotError(f"{path}: {problem}") from problem


def check_written(message: Any, path: str | os.PathLike[str]) -> None:
    """Raise SnapshotError if a NetBytes or StateBytes that fcaffe wrote, read from `path`, lacks its end.

    Files that Caffe wrote have no mark at the end.
    """
    if message.written == pb.BEGUN and message.HasField("written"):
        raise SnapshotError(f"{path} is cut off: its end is missing; copy it again or take an earlier one")


def binary_class(path: str | os.PathLike[str]) -> Any:
    """The class of the message in a binary file: pb.NetParameter, pb.SolverState, pb.BlobProto or None."""
    content = _content(path, look=True)
    for message_class, as_bytes in _AS_BYTES.items():
        if _parse(content, as_bytes) is not None:
            return message_class
    return None


MODEL = Kind("model (.caffemodel)", lambda path: binary_class(path) is pb.NetParameter)
STATE = Kind("solver state", lambda path: binary_class(path) is pb.SolverState)
BLOB = Kind("mean (.binaryproto)", lambda path: binary_class(path) is pb.BlobProto)


def file_start(path: str | os.PathLike[str], size: int = 4096) -> bytes:
    """The first bytes of a file, which tell its format. Raises SnapshotError."""
    with reading(path, SnapshotError), open_input(path, look=True) as file:
        return file.read(size)


def write_binary(path: str | os.PathLike[str], message: Any, history: Sequence[StoredBlob] = ()) -> None:
    """Write a message completely or not at all, without the fields of forks. Raises SnapshotError.

    A SolverState with a ResumeState begins and ends with marks for `check_written`.

    Args:
        path: the file.
        message: the message.
        history: the history blobs of a SolverState, which are written without a copy.
    """
    try:
        content = without_fork_fields(message).SerializeToString()
    except EncodeError as error:
        raise SnapshotError(f"cannot write {path}: {error}") from error
    blobs = [piece for blob in history for piece in field_of_blob(_HISTORY, blob)]
    offset = before_field(content, _HISTORY) if blobs else 0
    pieces = [content[:offset], *blobs, content[offset:]]
    if isinstance(message, pb.SolverState) and message.HasField("resume"):
        begun, whole = (pb.SolverState(written=mark).SerializeToString() for mark in (pb.BEGUN, pb.WHOLE))
        pieces = [begun, *pieces, whole]
    size = sum(map(len, pieces))
    if size > LARGEST:
        raise SnapshotError(f"cannot write {path}: with {size} bytes it {TOO_LARGE}")
    kind = _kind_of(type(message))
    noun = " ".join(kind.noun.split()[1:-1]) if kind else "file"  # "a solver state (.solverstate)"
    with replacing(path, noun, SnapshotError) as temporary, open(temporary, "wb") as file:
        file.writelines(pieces)


def is_text(start: bytes) -> bool:
    return all(byte >= 0x20 or byte in b"\t\n\r\f" for byte in start)


def _content(path: str | os.PathLike[str], look: bool = False) -> bytes:
    with reading(path, SnapshotError):
        try:
            return read_input(path, LARGEST, look)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
    raise SnapshotError(f"{path} has more than {LARGEST} bytes, which no protobuf file can; such models are .h5")


def _kind_of(message_class: Any) -> _Kind | None:
    return _KINDS.get(_AS_BYTES.get(message_class, message_class))


def _parse(content: bytes, message_class: Any) -> Any:
    """The message, or None if the bytes are none of this kind."""
    as_bytes, kind = _AS_BYTES.get(message_class, message_class), _kind_of(message_class)
    try:
        message = message_class.FromString(content)
        outline = message if message_class is as_bytes else as_bytes.FromString(content)
        return message if kind is None or kind.holds(outline) else None
    except (DecodeError, UnicodeDecodeError):
        return None


def _diagnosis(content: bytes, message_class: Any) -> str:
    wanted = _kind_of(message_class)
    noun = wanted.noun if wanted else f"a {message_class.DESCRIPTOR.name}"
    if not content:
        return f"is empty; {noun} is wanted"
    if content.startswith(HDF5_MAGIC):
        return f"is an HDF5 file; {noun} is wanted (HDF5 snapshots have names that end in .h5)"
    if is_text(content[:4096]):
        return f"is text, perhaps a prototxt; {noun} is wanted"
    for other_class in _AS_BYTES:
        other = _kind_of(other_class)
        if other is not None and other is not wanted and _parse(content, other_class) is not None:
            return f"is {other.noun}, not {noun}; {other.use}"
    return f"is damaged or cut off after {len(content)} bytes; copy it again or take an earlier one ({noun} is wanted)"
