"""Sealed datagrams between the agents of a job's hosts: their tables of ranks, and who has found a fault first."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fcaffe.parallel.table import Slot

SEAL = 32  # bytes of the HMAC at the end of a datagram
BATCH = 200  # datagrams that are read before the agent looks after its ranks again
HEARING = 0.3  # seconds to hear whether the agent of another host has found the fault before
SILENCE = 3.5  # seconds without a table after which a host counts as cut off
Peer = tuple[str, str, int]
Fault = tuple[float, int]  # when, and the number of the agent that has found it


@dataclass
class Status:
    """What the agent of another host has sent last, and when."""

    count: int
    heard: float
    slots: list[Slot]
    fault: Fault | None


class Network:
    """The agents of the other hosts, and their tables as last received.

    `agents` has the host's name of each as its launcher has it, the name that the host gives itself, and the UDP port.

    A datagram is a line of JSON: the sender's number, a sequence number, the fault that it has found, and its table. It
    ends with an HMAC under the job's `key`, so nobody else can write one, and none counts twice. The key itself is
    never sent. Without a socket there are no other hosts.
    """

    def __init__(self, agents: list[Peer], handle: int | None, key: bytes, number: int) -> None:
        self.socket = None if handle is None else socket.socket(fileno=handle)
        self.key = key
        self.number = number
        self.sent = 0
        self.fault: Fault | None = None  # that this agent has found
        self.fault_heard: float | None = None  # when another agent has first told of one
        self.others: dict[int, Status] = {}  # by their numbers
        self.addresses: list[tuple[str, int]] = []
        if self.socket is not None:
            self.socket.setblocking(False)
        for *names, port in agents:
            for name in names:
                with contextlib.suppress(OSError):  # without a name service we know less of the other hosts
                    self.addresses.append((socket.gethostbyname(name), port))
                    break

    def send(self, slots: Sequence[Slot]) -> None:
        if self.socket is None:
            return
        self.sent += 1
        message = json.dumps([self.number, self.sent, self.fault, slots]).encode()
        for address in self.addresses:
            with contextlib.suppress(OSError):
                self.socket.sendto(message + self.seal(message), address)

    def seal(self, message: bytes) -> bytes:
        return hmac.digest(self.key, message, "sha256")

    def receive(self) -> None:
        """Take what has come; not all of a flood at once."""
        for _ in range(BATCH if self.socket is not None else 0):
            try:
                sealed = self.socket.recv(1 << 16)  # type: ignore[union-attr]
            except OSError:
                return
            message, seal = sealed[:-SEAL], sealed[-SEAL:]
            if not hmac.compare_digest(seal, self.seal(message)):
                continue
            number, count, fault, slots = json.loads(message)
            if number == self.number or (number in self.others and count <= self.others[number].count):
                continue  # a datagram that somebody has recorded and sends again
            now = time.monotonic()
            self.others[number] = Status(count, now, [Slot(*slot) for slot in slots], fault and tuple(fault))
            if fault and self.fault_heard is None:
                self.fault_heard = now

    def knows_of_fault(self, slots: Sequence[Slot]) -> bool:
        """Whether another agent has found a fault before this one, which does so now, and tells the others.

        If two find one before they hear of one another, the clocks of their hosts decide.
        """
        self.receive()
        known = self.fault_heard is not None
        if not known:
            self.fault = self.fault or (time.time(), self.number)
            self.send(slots)
        deadline = time.monotonic() + HEARING * bool(self.addresses)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            self.receive()
        known = known or any(other.fault < self.fault for other in self.others.values() if other.fault and self.fault)
        if known:
            time.sleep(HEARING)  # till it has said so: what we end now may take mpiexec with it
        return known

    def silent(self) -> list[Slot]:
        """The ranks of hosts that were heard of, but no longer are."""
        now = time.monotonic()
        return [slot for other in self.others.values() if now - other.heard > SILENCE for slot in other.slots]

    def everyone(self) -> list[Slot]:
        return [slot for other in self.others.values() for slot in other.slots]
