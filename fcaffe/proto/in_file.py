"""Binary files of which protobuf parses the outline only: the numbers of blobs stay in the file until they are wanted.

protobuf would copy them at each step, and a net that is to have them would wait for memory in place of the disk.
"""

from __future__ import annotations

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

MOST_FIELDS = 300_000  # that are looked at here; a file with more of them is left to protobuf
_WINDOW = 1 << 13  # bytes that are read at once where fields are small

_BLOB = pb.BlobBytes.DESCRIPTOR
_NAMES = {
    _BLOB.fields_by_name[name].number: name
    for name in ("data", "diff", "double_data", "double_diff", "raw_data", "raw_diff")
}
_WITH_BLOBS = ("LayerBytes", "V1LayerBytes", "V0LayerBytes")


class Stretch(NamedTuple):
    """Bytes of a file."""

    offset: int
    size: int


Numbers = dict[str, list[Stretch]]  # of a blob: where the bytes of its fields of numbers are


class Source:
    """A file that stays open as long as somebody may want to read from it."""

    def __init__(self, file: BinaryIO, path: str | os.PathLike[str]) -> None:
        self.file, self.path = file, path
        weakref.finalize(self, file.close)


@dataclass(frozen=True)
class InFile:
    """An array that is read from its file each time somebody asks for it."""

    source: Source
    stretches: list[Stretch]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(stretch.size for stretch in self.stretches)

    def reshape(self, shape: tuple[int, ...]) -> InFile:
        return replace(self, shape=shape)

    def read(self) -> np.ndarray:
        values = np.empty(self.shape, self.dtype)
        self.read_into(values)
        return values

    def read_into(self, values: np.ndarray) -> None:
        """Overwrite an array in C order of as many values of this type. SnapshotError if the file has been cut."""
        at, target = 0, values.reshape(-1).view(np.uint8)
        file: Any = self.source.file
        with reading(self.source.path, SnapshotError):
            for stretch in self.stretches:
                file.seek(stretch.offset)
                if file.readinto(target[at : at + stretch.size].data) != stretch.size:
                    raise SnapshotError(f"{self.source.path} has become shorter since it was opened; read it again")
                at += stretch.size


class BlobSource(NamedTuple):
    """Where the numbers of a blob are."""

    source: Source
    numbers: Numbers


class Outline(NamedTuple):
    """A message without the numbers of its blobs. Each blob has as its `place` an index in the list of these."""

    content: bytes
    numbers: list[Numbers]


def outline_of(file: BinaryIO, message_class: Any) -> Outline | None:
    """The outline of a message in a file, a NetBytes or StateBytes; None where the bytes are left to protobuf, which
    knows what is wrong with them. Nothing else is read than what is not in blobs."""
    scan = _Scan(file)
    try:
        content = scan.outline(0, file.seek(0, os.SEEK_END), message_class.DESCRIPTOR)
    except WireError:
        return None
    return Outline(content, scan.numbers)


class _Field(NamedTuple):
    number: int
    kind: int
    begin: int  # of the whole field
    content: int  # where its content begins
    end: int


class _Scan:
    """Goes through the fields of a file, of which it reads the keys and what is wanted."""

    def __init__(self, file: BinaryIO) -> None:
        self.numbers: list[Numbers] = []
        self._file = file
        self._window, self._begins = b"", 0
        self._left = MOST_FIELDS

    def outline(self, at: int, end: int, message: Any) -> bytes:
        """The bytes of a message that lies there, without the numbers of its blobs."""
        kept = []
        for field in self._fields(at, end):
            described = message.fields_by_number.get(field.number)
            inner = described and described.message_type
            if field.kind == LENGTH and inner is _BLOB:
                content = self._blob(field.content, field.end)
            elif field.kind == LENGTH and inner is not None and inner.name in _WITH_BLOBS:
                content = self.outline(field.content, field.end, inner)
            else:
                kept.append(self._bytes(field.begin, field.end))
                continue
            kept += [key(field.number), varint(len(content)), content]
        return b"".join(kept)

    def _blob(self, at: int, end: int) -> bytes:
        """The bytes of a BlobBytes with its place in place of its numbers; with them if they stand one by one."""
        kept, numbers = [], Numbers()
        for field in self._fields(at, end):
            name = _NAMES.get(field.number)
            if name is None:
                kept.append(self._bytes(field.begin, field.end))
            elif field.kind == LENGTH:
                numbers.setdefault(name, []).append(Stretch(field.content, field.end - field.content))
            else:
                kept, numbers = [self._bytes(at, end)], Numbers()
                break
        kept.append(pb.BlobBytes(place=len(self.numbers)).SerializeToString())
        self.numbers.append(numbers)
        return b"".join(kept)

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        """The fields between these positions. Raises WireError if the last one does not end there."""
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
        if not self._begins <= at <= self._begins + len(self._window) - LONGEST:
            self._window, self._begins = self._bytes(at, at + _WINDOW), at
        value, behind = read_varint(self._window, at - self._begins)
        return value, behind + self._begins

    def _bytes(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(end - begin)
