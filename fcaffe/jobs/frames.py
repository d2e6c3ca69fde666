"""Frames: the messages between a rank, its agent and the launcher.

A frame is a zero byte, the length of what follows, and an object of JSON. A stream may have lines of text between
frames: those of PMI-1 on the socket of a rank, or what a remote shell prints before it starts an agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import struct
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct(">BI")
LONGEST = 1 << 28  # bytes of a frame; a longer one is none
LONGEST_LINE = 1 << 16
Message = dict[str, Any]


class FrameError(Exception):
    """The peer sends something else than frames."""


def frame(message: Message) -> bytes:
    content = json.dumps(message).encode()
    return HEAD.pack(0, len(content)) + content


class Frames:
    """Cuts the bytes of a stream into frames and lines of text."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message | str]:
        """Return the frames and lines that are complete now. Raises FrameError."""
        self._rest += data
        found: list[Message | str] = []
        while self._rest and 0 < (length := self._length()) <= len(self._rest):
            part, self._rest = self._rest[:length], self._rest[length:]
            try:
                found.append(part.decode(errors="replace") if part[0] else dict(json.loads(part[HEAD.size :])))
            except (TypeError, ValueError) as problem:
                raise FrameError(f"a frame without an object of JSON ({problem})") from problem
        return found

    def _length(self) -> int:
        """Bytes of the first frame or line; 0 if unknown as yet."""
        if self._rest[0]:
            end = re.search(rb"\n|(?=\0)", self._rest)
            return end.end() if end else 0
        if len(self._rest) < HEAD.size:
            return 0
        length = int(HEAD.unpack_from(self._rest)[1])
        if length > LONGEST:
            raise FrameError(f"a frame of {length} bytes")
        return HEAD.size + length


class Lines:
    """Cuts the bytes of a stream behind lines of text."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message | str]:
        """Return the lines that are complete now, as one text; without data, the rest."""
        text, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if not data or len(self._rest) > LONGEST_LINE:
            newline, self._rest = newline + self._rest, b""
        return [(text + newline).decode(errors="backslashreplace")] if text or newline else []


class Link:
    """A peer's descriptors, which a selector serves: what it sends comes from `source`, and frames go to `target`.

    `received` is called with each message or line of text, and with None at the end of the stream. Nothing here waits.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        source: int,
        target: int | None,
        received: Callable[[Any], object],
        parser: Frames | Lines | None = None,
    ) -> None:
        self.selector, self.source, self.target, self.received = selector, source, target, received
        self.parser = parser or Frames()
        self.queue = b""  # frames that the peer has not taken yet
        self.open = True
        for descriptor in (source, target):
            if descriptor is not None:
                os.set_blocking(descriptor, False)
        selector.register(source, selectors.EVENT_READ, self.read)

    def send(self, **message: Any) -> None:
        self.queue += frame(message)
        self.write()

    def write(self) -> None:
        """Write what the peer takes; the selector calls this again if something is left."""
        assert self.target is not None
        try:
            while self.queue:
                self.queue = self.queue[os.write(self.target, self.queue) :]
        except BlockingIOError:
            with contextlib.suppress(KeyError):  # it is registered
                self.selector.register(self.target, selectors.EVENT_WRITE, self.write)
            return
        except OSError:  # the peer has ended
            self.queue = b""
        with contextlib.suppress(KeyError):
            self.selector.unregister(self.target)

    def read(self) -> bool:
        """Read once. Returns whether there may be more."""
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        try:
            for message in self.parser.feed(data):
                self.received(message)
        except FrameError as problem:
            self.received({"unfit": f"what it sends cannot be read: {problem}"})
            data = b""
        if not data:
            self.close()
            self.received(None)
        return self.open

    def drain(self) -> None:
        """Read what there is; of a peer that never stops, some more than a pipe holds."""
        for _ in range(32):
            if not (self.open and self.read()):
                return

    def close(self) -> None:
        """Leave the selector."""
        self.open, self.queue = False, b""
        for descriptor in (self.source, self.target):
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(descriptor)  # type: ignore[arg-type]
