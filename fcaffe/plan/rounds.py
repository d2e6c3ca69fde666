"""Rounds of messages between the ranks of a machine, and how long they take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fcaffe.plan.devices import Link
from fcaffe.plan.machine import Machine


@dataclass(frozen=True)
class Round:
    """Messages that all ranks on the longest path of a sum send at the same time, `count` times one after another.

    Attributes:
        count: Repetitions.
        bytes: Bytes of a message.
        link: What it goes over.
        added: Bytes that a rank adds to others meanwhile.
        streams: Messages that share the link.
        spread: Whether all nodes send across the network at once.
        rested: Number of messages that find the link idle.
    """

    count: float
    bytes: float
    link: Link
    added: float = 0.0
    streams: float = 1.0
    spread: bool = False
    rested: int = 0


@dataclass(frozen=True)
class Sum:
    """One sum of gradients: its seconds, and the rounds that it consists of."""

    seconds: float
    rounds: Sequence[Round]


@dataclass(frozen=True)
class Ranks:
    """A number of workers on the nodes of a machine; consecutive ones are on one node."""

    machine: Machine
    workers: int

    @property
    def on_node(self) -> int:
        return min(self.workers, self.machine.devices_per_node)

    @property
    def streams(self) -> float:
        """Messages that share a link between nodes when each rank of a node sends one."""
        return max(1.0, self.on_node / self.machine.links_per_node)

    def at(self, distance: int, size: float, added: float, alone: bool = False) -> Round:
        """A round between ranks at this distance, in which every rank sends, or of each node one `alone`."""
        node = self.machine.devices_per_node
        if self.workers <= node or node % (2 * distance) == 0:
            return Round(1, size, self.machine.within, added)
        return Round(1, size, self.machine.between, added, 1.0 if alone else self.streams, not alone)


def total(ranks: Ranks, rounds: Iterable[Round]) -> float:
    return sum(seconds(ranks, part) for part in rounds)


def seconds(ranks: Ranks, part: Round) -> float:
    """All repetitions of a round."""
    machine = ranks.machine
    slowed = part.streams * (machine.contention if part.spread else 1.0)
    message = part.link.latency + part.bytes * slowed / part.link.bandwidth
    adding = part.added / machine.add_bandwidth * machine.slowdown(ranks.workers) if machine.add_bandwidth else 0.0
    # While a message of the same length goes the other way, the bucket fills by no more than half of it.
    spared = part.rested * min(part.link.burst, part.bytes / 2) / part.link.bandwidth
    return part.count * (message + adding) - spared
