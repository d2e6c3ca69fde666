"""The loop of a launcher, an agent or a carrier: one selector, streams and links with queues, and ticks.

Nothing waits in it but the selector. What a peer does not take yet is queued, so a peer that sleeps delays nobody else.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fcaffe.jobs.frames import END, RECEIPT, SIGN, FrameError, Frames, Lines, frame, message

TURN = 0.1  # seconds of a turn without events
LATE = 4  # periods of a tick that count at most: this process may have been stopped


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # epoll's list would be shared with forked processes
        self.streams: set[Stream] = set()
        self._ticks: list[list[Any]] = []  # period, function, time of the last call

    def every(self, seconds: float, call: Callable[[float], object]) -> None:
        """Call this function again and again, with the seconds that have passed."""
        self._ticks.append([seconds, call, time.monotonic()])

    def close(self) -> None:
        """Close all streams, in a forked process its copies of them."""
        for stream in list(self.streams):
            stream.close()

    def watch(self, descriptor: int, event: int, call: Callable[[], object]) -> None:
        with contextlib.suppress(KeyError):  # it is watched
            self._selector.register(descriptor, event, call)

    def forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def turn(self, seconds: float = TURN) -> None:
        """Wait for events, at most for so many seconds, and call what they concern."""
        for key, _ in self._selector.select(seconds):
            key.data()
        now = time.monotonic()
        for tick in self._ticks:
            period, call, last = tick
            if now - last >= period:
                tick[2] = now
                call(min(now - last, LATE * period))


class Stream:
    """What a peer sends comes from the descriptor `source`, and what it gets goes to `target`. Both now belong to this.

    `received` is called with the kind and the content of each part, and with END at the end of the stream.

    Attributes:
        open: The stream has not ended.
    """

    def __init__(
        self,
        loop: Loop,
        source: int,
        target: int | None,
        received: Callable[[int, bytes], object],
        parser: Frames | Lines | None = None,
    ) -> None:
        self.loop, self.source, self.target, self.received = loop, source, target, received
        self.parser = parser or Frames()
        self.open = True
        self._queue: deque[memoryview] = deque()
        for descriptor in (source, target):
            if descriptor is not None:
                os.set_blocking(descriptor, False)
        loop.streams.add(self)
        loop.watch(source, selectors.EVENT_READ, self.read)

    @property
    def is_flushed(self) -> bool:
        return not self._queue

    def put(self, data: bytes) -> None:
        if self.open:
            self._queue.append(memoryview(data))
            self._write()

    def _write(self) -> None:
        """Write what the peer takes; the loop calls this again when it takes more."""
        if self.target is None:
            return
        try:
            while self._queue:
                done = os.write(self.target, self._queue[0])
                if rest := self._queue.popleft()[done:]:
                    self._queue.appendleft(rest)
        except BlockingIOError:
            self.loop.watch(self.target, selectors.EVENT_WRITE, self._write)
            return
        except OSError:  # the peer has ended; what it has sent before is still read
            self._queue.clear()
        self.loop.forget(self.target)

    def read(self) -> bool:
        """Read once. Returns whether there may be more."""
        if not self.open:
            return False
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        reason = b""
        try:
            self._take(data)
        except FrameError as problem:
            data, reason = b"", f"what it sends cannot be read: {problem}".encode()
        if not data:
            self.close()
            self.received(END, reason)
        return self.open

    def _take(self, data: bytes) -> None:
        for kind, content in self.parser.feed(data):
            self.received(kind, content)

    def drain(self) -> None:
        """Read what there is; of a peer that never stops, some more than a pipe holds."""
        for _ in range(64):
            if not self.read():
                return

    def close(self) -> None:
        self.open = False
        self._queue.clear()
        self.loop.streams.discard(self)
        for descriptor in {self.source, self.target} - {None}:
            assert descriptor is not None
            self.loop.forget(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Link(Stream):
    """A stream of frames that the receiver confirms after it has handled them.

    Attributes:
        unconfirmed: Bytes of frames of which the peer has not said that it has them.
    """

    unconfirmed = 0

    def send(self, kind: int, content: bytes) -> None:
        self._count_and_put(frame(kind, content))

    def tell(self, **fields: Any) -> None:
        self._count_and_put(message(**fields))

    def _count_and_put(self, data: bytes) -> None:
        self.unconfirmed += len(data)
        self.put(data)

    def _take(self, data: bytes) -> None:
        handled = 0
        for kind, content in self.parser.feed(data):
            if kind == RECEIPT:
                self.unconfirmed -= int(content)
            elif kind != SIGN:
                self.received(kind, content)
                handled += len(frame(kind, content)) if kind >= 0 else 0
        if handled:
            self.put(frame(RECEIPT, b"%d" % handled))


def own(file: Any) -> int:
    """A descriptor of this file or socket for a Stream; the file is closed."""
    with file:
        return os.dup(file.fileno())


def two_of(socket: Any) -> tuple[int, int]:
    """Two descriptors of a socket, to read from and to write to; the socket object is closed."""
    return os.dup(socket.fileno()), own(socket)
