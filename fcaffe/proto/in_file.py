"""Binary files whose outline is parsed by protobuf, while the numbers of blobs are read later, directly into arrays.

protobuf would copy the numbers several times. Copying takes longer than reading from the disk.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.input_files import reading
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.wire import FIXED32, FIXED64, LENGTH, LONGEST, VARINT, WireError, key, read_varint, varint

MOST_FIELDS = 300_000  # protobuf parses a file with more

_BYTE = np.dtype(np.uint8)
_BLOB = pb.BlobBytes.DESCRIPTOR
_NAMES = {
    _BLOB.fields_by_name[name].number: name
    for name in ("data", "diff", "double_data", "double_diff", "raw_data", "raw_diff")
}
_WITH_BLOBS = ("LayerBytes", "V1LayerBytes", "V0LayerBytes")


class Source:
    """A file that is closed with the last reference to it."""

    def __init__(self, file: BinaryIO, path: str | os.PathLike[str]) -> None:
        self.file, self.path = file, path
        weakref.finalize(self, file.close)


@dataclass(frozen=True)
class InFile:
    """An array that is read from its file each time `read` is called."""

    source: Source
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, dtype: np.dtype[Any]) -> InFile:
        """The same bytes as a one-dimensional array of another type."""
        return replace(self, dtype=dtype, shape=(self.nbytes // dtype.itemsize,))

    def reshape(self, shape: tuple[int, ...]) -> InFile:
        return replace(self, shape=shape)

    def read(self) -> np.ndarray:
        values = np.empty(self.shape, self.dtype)
        self.read_into(values)
        return values

    def read_into(self, values: np.ndarray) -> None:
        """Read into an array in C order of this type and size. Raises SnapshotError if the file has become shorter."""
        file: Any = self.source.file
        with reading(self.source.path, SnapshotError):
            file.seek(self.offset)
            if file.readinto(values.reshape(-1).view(np.uint8).data) != self.nbytes:
                raise SnapshotError(f"{self.source.path} has become shorter since it was opened; read it again")


Numbers = dict[str, InFile]  # of a blob: the bytes of its numeric fields, by name


def outline_of(source: Source, message_class: Any) -> tuple[bytes, list[Numbers]] | None:
    """The bytes of a NetBytes or StateBytes in a file without the numbers of its blobs, and these, which are not read.

    The `array_index` of a blob is its index in the list. None if the bytes are malformed or unusual; protobuf then
    parses the whole file, or says what is wrong.
    """
    scan = _Scan(source)
    try:
        content = scan.outline(0, source.file.seek(0, os.SEEK_END), message_class.DESCRIPTOR)
    except WireError:
        return None
    return content, scan.numbers


class _Field(NamedTuple):
    number: int
    kind: int
    begin: int  # offset of its key
    content: int  # offset of its content
    end: int


class _Scan:
    """A walk over the fields of a file that reads keys, lengths and fields without numbers."""

    def __init__(self, source: Source) -> None:
        self.numbers: list[Numbers] = []
        self._source = source
        self._left = MOST_FIELDS

    def outline(self, at: int, end: int, message: Any) -> bytes:
        """The bytes of the message in this range, without the numbers of its blobs."""
        pieces = []
        for field in self._fields(at, end):
            described = message.fields_by_number.get(field.number)
            inner = described and described.message_type
            if field.kind == LENGTH and inner is _BLOB:
                content = self._blob(field.content, field.end)
            elif field.kind == LENGTH and inner is not None and inner.name in _WITH_BLOBS:
                content = self.outline(field.content, field.end, inner)
            else:
                pieces.append(self._bytes(field.begin, field.end))
                continue
            pieces += [key(field.number), varint(len(content)), content]
        return b"".join(pieces)

    def _blob(self, at: int, end: int) -> bytes:
        """The bytes of a BlobBytes with its array_index instead of its numbers, unless these are in pieces."""
        pieces, numbers = [], Numbers()
        for field in self._fields(at, end):
            name = _NAMES.get(field.number)
            if name is None:
                pieces.append(self._bytes(field.begin, field.end))
            elif field.kind == LENGTH and name not in numbers:
                numbers[name] = InFile(self._source, field.content, _BYTE, (field.end - field.content,))
            else:
                pieces, numbers = [self._bytes(at, end)], Numbers()
                break
        pieces.append(pb.BlobBytes(array_index=len(self.numbers)).SerializeToString())
        self.numbers.append(numbers)
        return b"".join(pieces)

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        """Yields the fields of a range. Raises WireError if the last one does not end with it."""
        while at < end:
            self._left -= 1
            if not self._left:
                raise WireError("there are too many fields")
            tag, content = self._varint(at)
            number, kind = tag >> 3, tag & 7
            if kind == LENGTH:
                size, content = self._varint(content)
                behind = content + size
            elif kind == VARINT:
                behind = self._varint(content)[1]
            elif kind in (FIXED32, FIXED64):
                behind = content + (4 if kind == FIXED32 else 8)
            else:
                raise WireError("a group, or no message")
            if behind > end or not number:
                raise WireError("a field has no end, or no number")
            yield _Field(number, kind, at, content, behind)
            at = behind

    def _varint(self, at: int) -> tuple[int, int]:
        value, size = read_varint(self._bytes(at, at + LONGEST), 0)  # the file has a buffer
        return value, at + size

    def _bytes(self, begin: int, end: int) -> bytes:
        self._source.file.seek(begin)
        return self._source.file.read(end - begin)
