"""A rank's end of the channel to its agent: the pair of sockets by which its MPI library speaks PMI-1.

The agent sends one order, before MPI starts. From then on frames go to the agent only: what the rank does, its error,
and the end of its training. Standard error carries only what users read.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any

from fcaffe.jobs.frames import Frames, Message, frame
from fcaffe.jobs.started import CHANNEL, is_child_of_rank

PATIENCE = 60.0  # seconds until an order comes, or until the agent takes a message


class Channel:
    """The channel of this rank, whose socket has this descriptor. The MPI library uses the same socket."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=os.dup(descriptor))

    def order(self) -> Message:
        """Wait for the order of the launcher. If the agent has died, end."""
        frames = Frames()
        while select.select([self.socket], [], [], PATIENCE)[0]:
            data = self.socket.recv(1 << 16)
            for message in frames.feed(data):
                assert isinstance(message, dict)
                return message
            if not data:
                break
        os._exit(1)

    def beat(self, state: str, operation: str, iteration: int) -> None:
        """Tell what this rank does. If the agent is slow it may miss that, and hears the next one."""
        with contextlib.suppress(OSError):
            self.socket.send(frame({"beat": [state, operation, iteration]}), socket.MSG_DONTWAIT)

    def tell(self, **message: Any) -> None:
        """Send a message that must not get lost."""
        rest = memoryview(frame(message))
        with contextlib.suppress(OSError):
            while rest and select.select([], [self.socket], [], PATIENCE)[1]:
                rest = rest[self.socket.send(rest, socket.MSG_DONTWAIT) :]


def open_channel() -> Channel | None:
    """The channel of this process; None if no agent has started it as a rank."""
    if CHANNEL not in os.environ or is_child_of_rank(os.environ):
        return None
    return Channel(int(os.environ[CHANNEL]))
