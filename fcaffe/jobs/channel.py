"""A rank's end of the channel to its agent: a socket for messages, and memory that says what the rank does.

The rank sends the begin and the end of its training, or its error, and the agent confirms each. Standard error carries
only what users read.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from fcaffe.jobs.frames import END
from fcaffe.jobs.loop import Link, Loop, two_of
from fcaffe.jobs.status import Status
from fcaffe.parallel.watchdog import TRAINING, Doing


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
