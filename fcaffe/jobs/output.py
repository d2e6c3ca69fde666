"""What ranks print: read by their agent, forwarded by the launcher."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from typing import Any

from fcaffe.jobs.frames import Lines, Link

PIECE = 4096  # bytes that a pipe takes at once if it takes any
MOST_FRAMES = 1 << 20  # bytes of frames that wait for the launcher
MOST = 1 << 24  # characters that wait for a slow reader of the output; more are lost


class RankOutput:
    """The pipes into which all ranks of a host print; the ranks inherit the `targets`."""

    def __init__(self, link: Link) -> None:
        self.link = link
        pipes = [os.pipe() for _ in range(2)]
        self.targets = (pipes[0][1], pipes[1][1])
        self._sources = [("stdout", pipes[0][0], Lines()), ("stderr", pipes[1][0], Lines())]
        for _, source, _ in self._sources:
            os.set_blocking(source, False)

    def forward(self) -> None:
        """Send the launcher what there is, not faster than it takes it."""
        for stream, source, lines in self._sources:
            data = b"-"
            while data and len(self.link.queue) < MOST_FRAMES:
                try:
                    data = os.read(source, 1 << 16)
                except BlockingIOError:
                    break
                for text in lines.feed(data):
                    self.link.send(**{stream: text})


class Output:
    """The launcher's output, to which it forwards what its members print.

    A reader that is slow, such as a pager, stops nothing: the text waits.

    Attributes:
        closed: Nothing more is taken. After the end of a job, other ranks and mpiexec only print its consequences.
        unwritten: The error while forwarding standard output, which is therefore incomplete.
    """

    def __init__(self) -> None:
        self.closed = False
        self.unwritten: OSError | None = None
        self._waiting: deque[tuple[str, str]] = deque()
        self._length = 0

    def write(self, name: str, text: str) -> None:
        """Forward text to "stdout" or "stderr"."""
        if not self.closed and self._length < MOST:
            self._waiting.extend((name, text[start : start + PIECE]) for start in range(0, len(text), PIECE))
            self._length += len(text)
            self.flush()

    def flush(self, patience: float = 0.0) -> None:
        """Write what the readers take within so many seconds."""
        while self._waiting:
            name, text = self._waiting[0]
            stream = getattr(sys, name)
            if not _takes(stream, patience):
                return
            self._waiting.popleft()
            self._length -= len(text)
            try:  # if nobody reads it any more the job goes on
                stream.write(text)
                stream.flush()
            except OSError as problem:
                self.unwritten = problem if name == "stdout" else self.unwritten


def _takes(stream: Any, seconds: float) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # it is no file
        return True
    return bool(poll.poll(1000 * seconds))
