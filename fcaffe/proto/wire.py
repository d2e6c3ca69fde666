"""The parts of protobuf's wire format that readers of large files need: varints, keys and the extents of fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # kinds of fields
LONGEST = 10  # bytes of a varint


class WireError(ValueError):
    """The bytes are not a message, or are of a form that in_file.py leaves to protobuf."""


class Field(NamedTuple):
    """A field of a serialised message: the offsets of its key, of its content, and of its end."""

    number: int
    kind: int
    begin: int
    content: int
    end: int


def varint(value: int) -> bytes:
    """A non-negative integer as a varint: seven bits a byte, the lowest first."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def read_varint(content: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint at an offset, and the offset behind it. Raises WireError."""
    value = 0
    for shift in range(0, 7 * LONGEST, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError("a number has no end")


def key(number: int) -> bytes:
    """The key of a field that has a length."""
    return varint(number << 3 | LENGTH)


def fields_of(read: Callable[[slice], bytes | memoryview], at: int, end: int) -> Iterator[Field]:
    """Yields the fields of a message from offset `at` to `end`, of which `read` returns slices.

    Raises WireError if the last field does not end with the message.
    """

    def number_at(offset: int) -> tuple[int, int]:
        value, size = read_varint(read(slice(offset, offset + LONGEST)), 0)
        return value, offset + size

    while at < end:
        tag, content = number_at(at)
        number, kind = tag >> 3, tag & 7
        if kind == LENGTH:
            size, content = number_at(content)
            behind = content + size
        elif kind == VARINT:
            behind = number_at(content)[1]
        elif kind in (FIXED32, FIXED64):
            behind = content + (4 if kind == FIXED32 else 8)
        else:
            raise WireError("a group, or no message")
        if behind > end or not number:
            raise WireError("a field has no end, or no number")
        yield Field(number, kind, at, content, behind)
        at = behind


def before_field(content: bytes, number: int) -> int:
    """The offset of a new field in a message whose fields are in the order of their numbers."""
    fields = fields_of(content.__getitem__, 0, len(content))
    return next((field.begin for field in fields if field.number > number), len(content))
