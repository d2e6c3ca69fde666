"""A rank's end of the channel to its agent: a socket for messages, and memory that says what the rank does.

The rank sends the begin and the end of its training, or its error, and the agent confirms each. Standard error carries
only what users read.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from fcaffe.jobs.frames import RECEIPT, Frames, message
from fcaffe.jobs.status import Status
from fcaffe.parallel.watchdog import TRAINING, Doing


class Channel:
    def __init__(self, end: socket.socket, status: Status) -> None:
        self.socket, self.status = end, status
        self._frames = Frames()
        self._unconfirmed = 0
        self._trains = False

    def report(self, doing: Doing) -> None:
        """Write what this rank does, as a Watchdog reports it. The agent gets a message when it begins to train."""
        self.status.write(doing)
        if doing.state == TRAINING and not self._trains:
            self._trains = True
            self._send(trains=True)

    def tell(self, **fields: Any) -> None:
        """Send a message, and return when the agent has it."""
        self._send(**fields)
        while self._unconfirmed > 0:
            self._receive()

    def _send(self, **fields: Any) -> None:
        data = message(**fields)
        self._unconfirmed += len(data)
        with contextlib.suppress(OSError):  # the agent has died, and the kernel ends this process, too
            self.socket.sendall(data)

    def _receive(self) -> None:
        """Take confirmations. If the agent has died, end."""
        data = b""
        with contextlib.suppress(OSError):
            data = self.socket.recv(1 << 16)
        if not data:
            os._exit(1)
        self._unconfirmed -= sum(int(content) for kind, content in self._frames.feed(data) if kind == RECEIPT)
