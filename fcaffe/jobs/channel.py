"""A rank's end of the channel to its agent: a socket for messages, and memory that says what the rank does.

The rank sends the begin and the end of its training, or its error, and the agent confirms each. Standard error carries
only what users read.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from typing import Any

from fcaffe.jobs.frames import END
from fcaffe.jobs.loop import Link, Loop, two_of
from fcaffe.parallel.watchdog import STATES, TRAINING, Doing

LAYOUT = struct.Struct("<QBBq96sQ")  # number of changes, state, waits, iteration, operation, number of changes


class Status:
    """What a rank does, in memory that a fork shares. The rank writes, its agent reads, and neither waits."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LAYOUT.size)
        self.changes = 0

    def write(self, doing: Doing) -> None:
        self.changes += 1
        state, operation = STATES.index(doing.state), doing.operation.encode()[:96]
        LAYOUT.pack_into(self._memory, 0, self.changes, state, doing.waits, doing.iteration, operation, self.changes)

    def read(self) -> Doing | None:
        """What the rank does, if that has changed since the last call."""
        first, state, waits, iteration, operation, last = LAYOUT.unpack_from(self._memory)
        if first != last or first == self.changes:  # it is being written, or is known
            return None
        self.changes = first
        return Doing(STATES[state], bool(waits), operation.rstrip(b"\0").decode(errors="replace"), iteration)


class Channel:
    def __init__(self, end: socket.socket, status: Status) -> None:
        self.status = status
        self._loop = Loop()
        self._link = Link(self._loop, *two_of(end), self._hear)
        self._trains = False

    def report(self, doing: Doing) -> None:
        """Write what this rank does, as a Watchdog reports it. The agent gets a message when it begins to train."""
        self.status.write(doing)
        if doing.state == TRAINING and not self._trains:
            self._trains = True
            self._link.tell(trains=True)

    def tell(self, **fields: Any) -> None:
        """Send a message, and return when the agent has it."""
        self._link.tell(**fields)
        while self._link.unconfirmed > 0:
            self._loop.turn()

    def _hear(self, kind: int, _: bytes) -> None:
        if kind == END:  # the agent has died, and the kernel ends this process, too
            os._exit(1)
