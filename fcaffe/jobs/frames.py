"""Frames: what a rank, its agent and the launcher send one another.

A frame is a zero byte, its kind, the length of its content, and the content. A message is an object of JSON, and output
is bytes as they were printed. A stream may have lines of text between frames, such as what a remote shell prints before
it starts an agent.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

MESSAGE, STDOUT, STDERR, RECEIPT, SIGN = range(5)
TEXT, END = -1, -2  # not sent: lines between frames, and the end of a stream, whose content is the reason if it has one
HEAD = struct.Struct(">BBI")
LONGEST = 1 << 30  # bytes of a frame; a longer one is none
LONGEST_LINE = 1 << 16
Message = dict[str, Any]
Part = tuple[int, bytes]  # kind, content


class FrameError(Exception):
    """The peer sends something else than frames."""


def frame(kind: int, content: bytes) -> bytes:
    return content if kind == TEXT else HEAD.pack(0, kind, len(content)) + content


def message(**fields: Any) -> bytes:
    return frame(MESSAGE, json.dumps(fields).encode())


class Frames:
    """Cuts the bytes of a stream into frames and lines of text."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Part]:
        """Return what is complete now. Raises FrameError."""
        self._rest += data
        found: list[Part] = []
        while self._rest:
            if self._rest[0]:
                ends = [end for end in (self._rest.find(b"\0"), self._rest.find(b"\n") + 1) if end > 0]
                kind, start, end = TEXT, 0, min(ends, default=len(self._rest) + 1)
            elif len(self._rest) < HEAD.size:
                break
            else:
                _, kind, length = HEAD.unpack_from(self._rest)
                start, end = HEAD.size, HEAD.size + length
                if length > LONGEST or kind > SIGN:
                    raise FrameError(f"a frame of kind {kind} and {length} bytes")
            if end > len(self._rest):
                break
            found.append((kind, bytes(self._rest[start:end])))
            del self._rest[:end]
        return found


def first_message(descriptor: int) -> Message:
    """Wait for the first message of a stream, and read nothing that comes behind it. Raises FrameError."""
    frames, parts = Frames(), list[Part]()
    while not parts:
        if not (data := os.read(descriptor, 1)):
            raise FrameError("the stream ended before its first message")
        parts = frames.feed(data)
    return dict(json.loads(parts[0][1]))


class Lines:
    """Cuts the bytes of a stream behind lines of text."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Part]:
        """Return the lines that are complete now, as one text; without data, the rest."""
        text, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if not data or len(self._rest) > LONGEST_LINE:
            newline, self._rest = newline + self._rest, b""
        return [(TEXT, text + newline)] if text or newline else []
