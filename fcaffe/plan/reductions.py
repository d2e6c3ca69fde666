"""The time of each reduction of a buffer, as rounds of messages along its longest path.

The ranks of a ring or a butterfly do all the same at the same time, and the longest path of a tree is known, so a sum
over any number of ranks is a few rounds. Docstrings have the formulas of the literature for p ranks on equal links: n
bytes, alpha seconds a message, beta seconds a byte, gamma seconds a byte that is added (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005). L is floor(log2 p); where p is no power of 2,
`doubling` and `halving` take 2 (alpha + n beta) + n gamma more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fcaffe.parallel.sizes import best_reduction, segment_length, segments_ahead
from fcaffe.plan.machine import FCAFFE, Link, Machine, find


@dataclass(frozen=True)
class Round:
    """Messages that all ranks on the longest path of a sum send at the same time, `count` times one after another."""

    count: float
    bytes: float  # of a message
    link: Link
    added: float = 0.0  # bytes that a rank adds to others meanwhile
    streams: float = 1.0  # messages that share the link


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
        return Round(1, size, self.machine.between, added, 1.0 if alone else self.streams)


def total(ranks: Ranks, rounds: Iterable[Round]) -> float:
    """Seconds of all rounds, one after another."""
    adding = ranks.machine.add_bandwidth or math.inf
    return sum(
        part.count * (part.link.latency + part.bytes * part.streams / part.link.bandwidth + part.added / adding)
        for part in rounds
    )


Rounds = Callable[[Ranks, float], list[Round]]


def server(ranks: Ranks, size: float) -> list[Round]:
    """Buffers go to the server one after the other, and the sum to every worker: 2 p (alpha + n beta) + p n gamma.

    fcaffe's rank 0 serves itself: p - 1 instead of p.
    """
    machine, workers = ranks.machine, ranks.workers
    served = workers - (machine.exchange == FCAFFE)
    near = min(served, ranks.on_node - (machine.exchange == FCAFFE))
    parts = [(near, machine.within), (served - near, machine.between)]
    if machine.devices_per_node == 1:
        parts = [(served, machine.between)]
    return [Round(count, size, link, added) for count, link in parts if count for added in (size, 0.0)]


def whole_tree(ranks: Ranks, size: float) -> list[Round]:
    """Up a binomial tree and down again: ceil(log2 p) (2 (alpha + n beta) + n gamma), FireCaffe's equation (4)."""
    levels = math.ceil(math.log2(ranks.workers))
    return [ranks.at(1 << level, size, added, alone=True) for added in (size, 0.0) for level in range(levels)]


def segmented_tree(ranks: Ranks, size: float) -> list[Round]:
    """fcaffe's tree: segments follow one another, up and down at once.

    Either the root is the bottleneck, which sends or receives a message for every level and segment. Or it is the
    root's largest child, which receives the first total only after it has sent up `ahead` segments.
    """
    levels = math.ceil(math.log2(ranks.workers))
    length = 4 * segment_length(max(1, int(size) // 4))
    segments = math.ceil(size / length - 1e-9)
    whole = whole_tree(ranks, size)
    if segments == 1:
        return whole
    ahead = min(segments, segments_ahead(ranks.workers))
    one = [ranks.at(1 << level, length, length, alone=True) for level in range(levels)]
    by_root = _times(one, segments + 2)
    by_child = [*_times(one[:-1], ahead + segments + 1), *_times(one[-1:], 2)]  # the last level is the root's
    # The last segment may be next to nothing: then the whole buffer at once is the better estimate.
    return min(_slowest(ranks, (by_root, by_child)), whole, key=lambda rounds: total(ranks, rounds))


def _times(rounds: list[Round], factor: float) -> list[Round]:
    return [replace(part, count=part.count * factor) for part in rounds]


def doubling(ranks: Ranks, size: float) -> list[Round]:
    """Partners at distance 1, 2, 4 ... swap whole buffers: L (alpha + n beta + n gamma)."""
    steps = ranks.workers.bit_length() - 1
    return [*_folding(ranks, size), *(ranks.at(1 << step, size, size) for step in range(steps))]


def ring(ranks: Ranks, size: float) -> list[Round]:
    """2 (p - 1) steps of a p-th each on the slowest link: 2 (p - 1) alpha + (p - 1) / p n (2 beta + gamma)."""
    machine, count, part = ranks.machine, ranks.workers - 1, size / ranks.workers
    links = [machine.within] * (ranks.on_node > 1) + [machine.between] * (machine.nodes(ranks.workers) > 1)
    return _slowest(ranks, ([Round(count, part, link, added) for added in (part, 0.0)] for link in links))


def halving(ranks: Ranks, size: float) -> list[Round]:
    """Partners at distance 1, 2, 4 ... swap halves, then double: 2 L alpha + (1 - 2^-L) n (2 beta + gamma)."""
    steps = ranks.workers.bit_length() - 1
    rounds = _folding(ranks, size)
    for step in range(steps):
        part = size / (2 << step)
        rounds += [ranks.at(1 << step, part, part), ranks.at(1 << step, part, 0.0)]
    return rounds


def _folding(ranks: Ranks, size: float) -> list[Round]:
    """Ranks beyond a power of two give their buffers to a neighbour and get the sum back."""
    if ranks.workers & (ranks.workers - 1) == 0:
        return []
    return [ranks.at(1, size, size), ranks.at(1, size, 0.0)]


def hierarchical(ranks: Ranks, size: float) -> list[Round]:
    """A reduce-scatter within each node, each slice summed between the nodes, an allgather within."""
    machine, near = ranks.machine, ranks.on_node
    nodes = machine.nodes(ranks.workers)
    rounds = ring(Ranks(machine, near), size) if near > 1 else []
    if nodes > 1:
        slices = Ranks(replace(machine, devices_per_node=1), nodes)
        rounds += [replace(part, streams=ranks.streams) for part in _between(slices, size / near)]
    return rounds


def _between(ranks: Ranks, size: float) -> list[Round]:
    """The reduction that fcaffe's `auto` picks between hosts of one rank each."""
    return COMPARED[best_reduction(ranks.workers, int(size))[0]](ranks, size)


def auto(ranks: Ranks, size: float) -> list[Round]:
    """A ring within a node, and between nodes the reduction that fcaffe's `auto` picks by nodes, ranks and bytes."""
    if ranks.workers <= ranks.machine.devices_per_node:
        return ring(ranks, size)
    return hierarchical(ranks, size) if ranks.on_node > 1 else _between(ranks, size)


def tree(ranks: Ranks, size: float) -> list[Round]:
    """Up a binomial tree and down again: ceil(log2 p) (2 (alpha + n beta) + n gamma), or in segments as in fcaffe."""
    return segmented_tree(ranks, size) if ranks.machine.exchange == FCAFFE else whole_tree(ranks, size)


COMPARED: dict[str, Rounds] = {  # of reductions that take equally long, the first is the best
    "ring": ring,
    "halving": halving,
    "hierarchical": hierarchical,
    "doubling": doubling,
    "tree": tree,
    "segmented-tree": segmented_tree,
    "server": server,
}
REDUCTIONS: dict[str, Rounds] = {**COMPARED, "whole-tree": whole_tree, "auto": auto}


def sum_of(name: str, machine: Machine, workers: int, size: float) -> float:
    """Seconds of one sum of `size` bytes over this many workers. Raises UsageError."""
    reduction = find(name, REDUCTIONS, "reduction")
    ranks = Ranks(machine, workers)
    return total(ranks, reduction(ranks, size)) if workers > 1 and size else 0.0


def _slowest(ranks: Ranks, ways: Iterable[list[Round]]) -> list[Round]:
    return max(ways, key=lambda rounds: total(ranks, rounds))
