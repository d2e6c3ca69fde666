"""Sealed datagrams between the agents of a job's hosts: their tables of ranks, and who has found a fault first."""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import time
from collections.abc import Iterable

from fcaffe.parallel.table import Slot, read_slots

FAULT = struct.Struct("<dq")  # when, and a rank of the host whose agent has found it
HEADER = struct.Struct("<qqc")  # number of the sender, sequence number, kind of the content
SLOTS_INSIDE, FAULT_INSIDE = b"s", b"f"
SEAL = 32  # bytes of the HMAC at the end of a datagram
BATCH = 200  # datagrams that are read before the agent looks after its ranks again
HEARING = 0.3  # seconds to hear whether the agent of another host has found the fault before
SILENCE = 3.5  # seconds without a table after which a host counts as cut off
Peer = tuple[str, str, int]


class Network:
    """The agents of the other hosts, and their tables as last received.

    `agents` has the host's name of each as its launcher has it, the name that the host gives itself, and the UDP port.

    Each datagram ends with an HMAC under the job's `key` over the sender's number and a sequence number, so nobody else
    can write one, and none counts twice. The key itself is never sent. Without a socket there are no other hosts.
    """

    fault_heard: float | None = None  # when another agent has first told of one

    def __init__(self, agents: list[Peer], handle: int | None, key: bytes, number: int) -> None:
        self.socket = None if handle is None else socket.socket(fileno=handle)
        self.key = key
        self.number = number
        self.sent = 0
        self.last: dict[int, int] = {}  # sequence number of the last datagram from each agent
        self.addresses: list[tuple[str, int]] = []
        self.slots: dict[str, list[Slot]] = {}  # by the number of the agent that sent them
        self.heard: dict[str, float] = {}
        self.faults: list[tuple[float, int]] = []
        if self.socket is not None:
            self.socket.setblocking(False)
        for *names, port in agents:
            for name in names:
                with contextlib.suppress(OSError):  # without a name service we know less of the other hosts
                    self.addresses.append((socket.gethostbyname(name), port))
                    break

    def send(self, slots: Iterable[Slot]) -> None:
        self._send(SLOTS_INSIDE, b"".join(slot.pack() for slot in slots))

    def send_fault(self, when: float, rank: int) -> None:
        """Tell the other agents that this rank's agent has found a fault."""
        self._send(FAULT_INSIDE, FAULT.pack(when, rank))

    def knows_of_fault(self, rank: int) -> bool:
        """Whether another agent has found a fault before this rank's agent, which does so now, and tells the others.

        If two find one before they hear of one another, the clocks of their hosts decide.
        """
        self.receive()
        own, known = (time.time(), rank), bool(self.faults)
        if not known:
            self.send_fault(*own)
        deadline = time.monotonic() + HEARING * bool(self.addresses)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            self.receive()
        known = known or any(fault < own for fault in self.faults)
        if known:
            time.sleep(HEARING)  # till it has said so: what we end now may take mpiexec with it
        return known

    def _send(self, kind: bytes, content: bytes) -> None:
        if self.socket is None:
            return
        self.sent += 1
        message = HEADER.pack(self.number, self.sent, kind) + content
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
            if len(message) >= HEADER.size and hmac.compare_digest(seal, self.seal(message)):
                sender, count, kind = HEADER.unpack_from(message)
                self.take(sender, count, kind, message[HEADER.size :])

    def take(self, sender: int, count: int, kind: bytes, content: bytes) -> None:
        if sender == self.number or count <= self.last.get(sender, 0):
            return  # a datagram that somebody has recorded and sends again
        self.last[sender] = count
        if kind == FAULT_INSIDE:
            self.faults.append(FAULT.unpack(content))
            self.fault_heard = self.fault_heard or time.monotonic()
        else:
            self.slots[str(sender)] = read_slots(content)
            self.heard[str(sender)] = time.monotonic()

    def silent(self) -> list[Slot]:
        """The ranks of hosts that were heard of, but no longer are."""
        now = time.monotonic()
        return [slot for name, slots in self.slots.items() if now - self.heard[name] > SILENCE for slot in slots]

    def everyone(self) -> list[Slot]:
        return [slot for slots in self.slots.values() for slot in slots]
