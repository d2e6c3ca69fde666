"""What ranks print, as bytes: read by their agent, sent to the launcher, and written there.

A reader that is slow or asleep delays nobody. What it does not take waits in a Backlog.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from fcaffe import log
from fcaffe.jobs.frames import STDERR, STDOUT, Lines
from fcaffe.jobs.loop import Link, Loop, Stream
from fcaffe.jobs.silences import READER
from fcaffe.log.lines import Outlet

WINDOW = 1 << 20  # bytes that an agent sends before the launcher has confirmed earlier ones
MOST = 1 << 24  # bytes of a Backlog
PIECE = 4096  # bytes that are written at once


class Backlog:
    """Bytes that wait for a reader. What exceeds MOST is dropped until the reader has the rest, and a line says how
    many bytes these were."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self.length = 0
        self.dropped = 0

    def put(self, data: bytes) -> None:
        if self.dropped or self.length + len(data) > MOST:
            self.dropped += len(data)
        else:
            self._pieces.append(data)
            self.length += len(data)

    def take(self) -> bytes:
        """Remove the first piece; empty if there is none."""
        if self._pieces:
            piece = self._pieces.popleft()
            self.length -= len(piece)
            return piece
        dropped, self.dropped = self.dropped, 0
        lines = f"\n[fcaffe: {dropped} bytes of output were dropped here, since nobody read them]\n"
        return lines.encode() if dropped else b""


class RankOutput:
    """The pipes into which all ranks of a host print; the ranks inherit the `targets`."""

    def __init__(self, loop: Loop, link: Link) -> None:
        self.link = link
        pipes = [os.pipe() for _ in range(2)]
        self.targets = (pipes[0][1], pipes[1][1])
        self._backlogs = {STDOUT: Backlog(), STDERR: Backlog()}
        self._streams = [
            Stream(loop, source, None, lambda _, text, own=backlog: own.put(text), Lines())  # type: ignore[misc]
            for (source, _), backlog in zip(pipes, self._backlogs.values(), strict=True)
        ]

    def forward(self, window: float = WINDOW) -> None:
        """Send the launcher what there is, not faster than it takes it."""
        for kind, backlog in self._backlogs.items():
            while self.link.unconfirmed < window and (piece := backlog.take()):
                self.link.send(kind, piece)

    def forward_all(self) -> None:
        """Read and send all that has been printed until now."""
        for stream in self._streams:
            stream.drain()
        self.forward(float("inf"))


class Writer(threading.Thread):
    """Writes to a descriptor of this process. Only this thread waits for its reader.

    Attributes:
        problem: The first error of a write. If nobody reads it any more the job goes on.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.problem: OSError | None = None
        self._writing = 0  # bytes that are being written
        self._outlet = Outlet(descriptor, name, notice=log.lines_missing)
        self._backlog = Backlog()
        self._changed = threading.Condition()
        self.start()

    def put(self, data: bytes) -> None:
        with self._changed:
            self._backlog.put(data)
            self._changed.notify()

    @property
    def left(self) -> int:
        """Bytes that are not written yet."""
        return self._backlog.length + self._writing

    def run(self) -> None:
        while True:
            with self._changed:
                while not (data := self._backlog.take()):
                    self._changed.wait()
                self._writing = len(data)
            for start in range(0, len(data), PIECE):
                self._outlet.write(data[start : start + PIECE])
                self.problem = self.problem or self._outlet.problem
                self._writing = max(0, len(data) - start - PIECE)

    @property
    def lost(self) -> int:
        """Bytes that are dropped if the process ends now."""
        return self.left + self._backlog.dropped

    def finish(self, gives_up: Callable[[], object]) -> bool:
        """Wait until all is written; returns False if the reader has taken nothing for READER seconds, or `gives_up`
        returns True."""
        left, since = self.left, time.monotonic()
        while self.left:
            if self.left != left:
                left, since = self.left, time.monotonic()
            if time.monotonic() - since > READER or gives_up():
                return False
            time.sleep(0.01)
        return True


class Output:
    """The launcher's output: the lines of its log, and what agents forward.

    Attributes:
        closed: Nothing more of ranks is taken. After the cause of a job's end they only print its consequences.
    """

    def __init__(self) -> None:
        self.closed = False
        self._writers = {STDOUT: Writer(1, "standard output"), STDERR: Writer(2, "standard error")}

    def write(self, kind: int, data: bytes) -> None:
        """Forward what a rank has printed."""
        if not self.closed:
            self._writers[kind].put(data)

    def log(self, line: str) -> None:
        """Write a line of the launcher's log, as `log.set_show` takes it."""
        self._writers[STDERR].put(line.encode(errors="backslashreplace"))

    def finish(self, gives_up: Callable[[], object]) -> None:
        """Write the rest, and log what readers do not take (see `Writer.finish`)."""
        for writer in self._writers.values():
            if not writer.finish(gives_up):
                log.warning(f"{writer.lost} bytes of {writer.name} were dropped, since its reader takes nothing")
        self._writers[STDERR].finish(gives_up)

    @property
    def unwritten(self) -> OSError | None:
        """The error because of which standard output is incomplete."""
        return self._writers[STDOUT].problem
