"""The parts of protobuf's wire format that large files need: varints, keys and field lengths."""

from __future__ import annotations

VARINT, FIXED64, LENGTH = range(3)  # kinds of fields
LONGEST = 10  # bytes of a varint


class WireError(ValueError):
    """The bytes are no message."""


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


def before_field(content: bytes, number: int) -> int:
    """The offset of a new field in a message whose fields are in the order of their numbers."""
    at = 0
    while at < len(content):
        found, behind = read_varint(content, at)
        if found >> 3 > number:
            break
        if found & 7 == LENGTH:
            size, behind = read_varint(content, behind)
            at = behind + size
        elif found & 7 == VARINT:
            at = read_varint(content, behind)[1]
        else:
            at = behind + (8 if found & 7 == FIXED64 else 4)
    return at
