"""A rank's end of the channel to its agent: a socket for messages, and memory that says what the rank does.

The agent sends one order. From then on the rank sends the begin and the end of its training, or its error, and the
agent confirms each. Standard error carries only what users read.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

from fcaffe.jobs.frames import MESSAGE, RECEIPT, Frames, Message, message
from fcaffe.jobs.started import CHANNEL, is_child_of_rank
from fcaffe.jobs.status import Status
from fcaffe.parallel.watchdog import TRAINING, Doing


class Channel:
    """The channel of this rank, by the descriptors of its socket and its memory."""

    def __init__(self, descriptor: int, memory: int) -> None:
        self.socket = socket.socket(fileno=os.dup(descriptor))
        self.status = Status(memory)
        self._frames = Frames()
        self._unconfirmed = 0
        self._trains = False

    def order(self) -> Message:
        """Wait for the order of the launcher. If the agent has died, end."""
        while True:
            for kind, content in self._receive():
                if kind == MESSAGE:
                    return dict(json.loads(content))

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

    def _receive(self) -> list[tuple[int, bytes]]:
        data = b""
        with contextlib.suppress(OSError):
            data = self.socket.recv(1 << 16)
        if not data:
            os._exit(1)
        parts = self._frames.feed(data)
        self._unconfirmed -= sum(int(content) for kind, content in parts if kind == RECEIPT)
        return parts


def open_channel() -> Channel | None:
    """The channel of this process; None if no agent has started it as a rank."""
    if CHANNEL not in os.environ or is_child_of_rank(os.environ):
        return None
    return Channel(*map(int, os.environ[CHANNEL].split(",")))
