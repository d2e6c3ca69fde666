"""Rounds of messages between the ranks of a machine, and how long they take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fcaffe.plan.devices import Link
from fcaffe.plan.machine import Machine


@dataclass(frozen=True)
class Round:
    """`count` times one after another: a message of `bytes` over `link`, which `streams` messages share, while the
    rank adds `added` bytes. `spread`: all nodes send across the network at once. `ends`: of messages that a rank
    handles in it, two if it sends and receives; `active`: the share of all ranks that do so at the same time; `rested`:
    before how many of the messages the link has idled."""

    count: float
    bytes: float
    link: Link
    added: float = 0.0
    streams: float = 1.0
    spread: bool = False
    ends: int = 1
    active: float = 1.0
    rested: int = 0


@dataclass(frozen=True)
class Sum:
    """Seconds that one sum takes, for which the ranks need a core for so many seconds on average; and its rounds."""

    seconds: float
    cpu: float
    rounds: Sequence[Round]


@dataclass(frozen=True)
class Ranks:
    """So many workers on the nodes of a machine, consecutive ones on one node."""

    machine: Machine
    workers: int

    @property
    def on_node(self) -> int:
        return min(self.workers, self.machine.devices_per_node)

    @property
    def streams(self) -> float:
        """How many messages share a link between nodes where each rank of a node sends one."""
        return max(1.0, self.on_node / self.machine.links_per_node)

    def at(self, distance: int, count: float, size: float, added: float, alone: bool = False) -> Round:
        """A round between ranks so far apart, in which every rank sends, or of each node one `alone`."""
        node = self.machine.devices_per_node
        if self.workers <= node or node % (2 * distance) == 0:
            return Round(count, size, self.machine.within, added, ends=2 - alone)
        streams = 1.0 if alone else self.streams
        return Round(count, size, self.machine.between, added, streams, not alone, 2 - alone)


def total(ranks: Ranks, rounds: Iterable[Round]) -> float:
    return sum(seconds(ranks, part)[0] for part in rounds)


def seconds(ranks: Ranks, part: Round) -> tuple[float, float]:
    """All repetitions of a round, and how much of that a rank needs a core on average. A message takes what the link
    takes, or what the cores take that handle it, which all ranks of a host share."""
    machine = ranks.machine
    sharing = machine.ranks_at_once(ranks.workers)
    crowding = max(1.0, part.active * sharing / machine.cores) if machine.cores else 1.0
    slowed = part.streams * (machine.contention if part.spread else 1.0)
    wire = part.link.latency + part.bytes * slowed / part.link.bandwidth
    handling = machine.cpu_per_message + part.bytes * machine.cpu_per_byte if part.link is machine.between else 0.0
    handling *= part.ends
    adding = part.added / machine.add_bandwidth if machine.add_bandwidth else 0.0
    taken = max(wire, handling * crowding) + adding * crowding
    # While a message of the same length goes the other way, the bucket fills by no more than half of it.
    spared = min(part.link.burst, part.bytes / 2) / part.link.bandwidth
    spared = part.rested * max(0.0, min(spared, wire - handling * crowding))
    return part.count * taken - spared, part.count * (handling + adding) * part.active
