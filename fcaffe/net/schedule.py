"""What the layers of a net read and write in whole passes, step by step, fused as they are when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from fcaffe.net.blob import Blob, Storage

if TYPE_CHECKING:
    from fcaffe.net.graph import Node
    from fcaffe.net.net import Net

Spans = list[tuple[int, int]]  # first and last steps of the stretches in which a storage's values are wanted
Again = Mapping[int, tuple[int, ...]]  # index of a node -> the nodes whose forward runs again before its backward


@dataclass
class Access:
    """The storages, by their ids, that a node reads and writes, forward and backward; and with which it changes places.

    `kept` are those of its own that forward writes for backward; a layer that is `drawing` needs them to run again.
    """

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    back_reads: set[int] = field(default_factory=set)
    back_writes: set[int] = field(default_factory=set)
    swaps: tuple[int, int] | None = None
    drawing: bool = False
    drops_bottom: bool = False


@dataclass
class Step:
    """What it reads and writes; of a forward that runs again, before whose backward."""

    reads: set[int]
    writes: set[int]
    before: int | None = None


class Schedule:
    """The storages of a net that have their values within a pass only, and who needs them when.

    Left out is what comes from outside or is read there (inputs, outputs, losses), parameters, gradients that nobody
    writes and so stay zero, and what Python layers see.
    """

    def __init__(self, net: Net) -> None:
        self.nodes = net.nodes
        self.blobs = [net.fusions.blobs_of(node.index) for node in net.nodes]
        self.inference = net.context.inference
        self.storages: dict[int, Storage] = {}
        self.activations: set[int] = set()
        self.gradients: set[int] = set()
        self.internal: set[int] = set()
        self._fixed = _fixed(net)
        self.accesses: list[Access] = []
        for node in net.nodes:
            self.accesses.append(self._access(node))
        self._fix(self._read_before_written())

    def steps(self, again: Again) -> list[Step]:
        """Of a whole pass, forward and backward, in which these nodes run again."""
        steps, places = [], {key: key for key in self.storages}
        for index in range(len(self.nodes)):
            steps.append(self._forward(index, places))
        for index in () if self.inference else range(len(self.nodes) - 1, -1, -1):
            for other in again.get(index, ()):
                if self.accesses[other].swaps:  # back to where it was before its forward
                    _swap(self.accesses[other], places)
            steps += [self._forward(other, places, before=index) for other in again.get(index, ())]
            if self.nodes[index].needs_backward:
                steps += self._backward(index, places)
        return steps

    def lifetimes(self, again: Again) -> dict[int, Spans]:
        """For each storage when its values are wanted, in steps of the pass."""
        spans: dict[int, Spans] = {}
        ends: dict[int, int] = {}
        for time, step in reversed(list(enumerate(self.steps(again)))):
            for key in step.reads | step.writes:
                ends.setdefault(key, time)
            for key in step.writes - step.reads:
                spans.setdefault(key, []).append((time, ends.pop(key)))
        for key, end in ends.items():
            spans.setdefault(key, []).append((0, end))
        return spans

    def fullest(self, again: Again) -> tuple[int, set[int]]:
        """The bytes of all values that are wanted at one time, at most, and the storages that they are in."""
        lifetimes = self.lifetimes(again)
        peak, time = fullest([(self.storages[key].nbytes, spans) for key, spans in lifetimes.items()])
        return peak, {key for key, spans in lifetimes.items() if any(a <= time <= b for a, b in spans)}

    def computed_again(self, again: Again) -> int:
        """The bytes of what is computed a second time, or more often."""
        writes = (set().union(*(self.accesses[node].writes for node in nodes)) for nodes in again.values())
        return sum(map(self.bytes_of, writes))

    def bytes_of(self, keys: Iterable[int]) -> int:
        return sum(self.storages[key].nbytes for key in keys)

    def _access(self, node: Node) -> Access:
        layer, (bottoms, tops) = node.layer, self.blobs[node.index]
        if not (bottoms or tops):
            return Access()
        access = Access(drawing=layer.draws, drops_bottom=layer.drops_bottom and len(bottoms) == 1)
        access.reads = self._keys((blob._data for blob in bottoms), self.activations)
        access.writes = self._keys((blob._data for blob in tops), self.activations)
        if self.inference:
            return access
        access.kept = self._keys((blob._data for blob in layer.kept_for_backward(bottoms, tops)), self.internal)
        other = layer.swaps_with(bottoms, tops)
        if other is not None:
            others = self._keys((other._data,), self.internal)
            if not access.writes:
                self._fix(others)
            elif tops[0].swaps_buffers(other):
                access.swaps = (id(tops[0]._data), id(other._data))
            else:
                access.kept |= others
        if node.needs_backward:
            seen = layer.read_by_backward(bottoms, tops)
            access.back_reads = self._keys((blob._data for blob in seen), self.activations) | access.kept
            access.back_reads |= set(access.swaps[1:]) if access.swaps else set()
            access.back_reads |= self._keys((blob._diff for blob in tops), self.gradients)
            needs = node.bottom_need_backward if bottoms is node.bottoms else [True] * len(bottoms)
            needed = (blob for blob, is_needed in zip(bottoms, needs, strict=True) if is_needed)
            access.back_writes = self._keys((blob._diff for blob in needed), self.gradients)
        return access

    def _keys(self, storages: Iterable[Storage], kind: set[int]) -> set[int]:
        keys = set()
        for storage in storages:
            if id(storage) not in self._fixed and storage.size:
                self.storages[id(storage)] = storage
                keys.add(id(storage))
        kind |= keys
        return keys

    def _forward(self, index: int, places: dict[int, int], before: int | None = None) -> Step:
        access = self.accesses[index]
        reads = {places[key] for key in access.reads}
        if access.swaps:
            _swap(access, places)
        kept = {places[key] for key in access.kept}
        writes = {places[key] for key in access.writes}
        if before is not None and access.drawing:
            return Step(reads | kept, writes, before)
        return Step(reads, writes | kept, before)

    def _backward(self, index: int, places: dict[int, int]) -> Iterator[Step]:
        access = self.accesses[index]
        reads = {places[key] for key in access.back_reads}
        if access.drops_bottom:
            yield Step(reads, set())
            reads = reads & self.gradients
        yield Step(reads, set(access.back_writes))

    def _read_before_written(self) -> set[int]:
        """Those that nobody writes, or only after they have been read, so that what is in them counts."""
        written: set[int] = set()
        early: set[int] = set()
        for step in self.steps({}):
            early |= step.reads - written
            written |= step.writes
        return early

    def _fix(self, keys: set[int]) -> None:
        """Leave these out after all."""
        for access in self.accesses:
            if access.swaps and keys.intersection(access.swaps):
                keys |= set(access.swaps)
                access.swaps = None
        self._fixed |= keys
        for key in keys:
            self.storages.pop(key, None)
        for kind in (self.activations, self.gradients, self.internal):
            kind -= keys
        for access in self.accesses:
            for some in (access.reads, access.writes, access.kept, access.back_reads, access.back_writes):
                some -= keys


def fullest(uses: Iterable[tuple[int, Spans]]) -> tuple[int, int]:
    """What the sizes of all that are in use at one time add up to, at most, and the step when they do."""
    changes: dict[int, int] = {}
    for size, spans in uses:
        for first, last in spans:
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    times = sorted(changes)
    sums = accumulate(changes[time] for time in times)
    return max(zip(sums, times, strict=True), key=lambda item: item[0], default=(0, 0))


def _swap(access: Access, places: dict[int, int]) -> None:
    assert access.swaps
    a, b = access.swaps
    places[a], places[b] = places[b], places[a]


def _fixed(net: Net) -> set[int]:
    """The storages that stay out of it, by their ids."""
    outer = [blob for index, blob in enumerate(net.blobs) if _is_outer(net, index)]
    outer += [blob for node in net.nodes if node.layer.type == "Python" for blob in node.blobs]
    read = [blob for node in net.nodes if not node.bottoms for blob in node.tops]
    parameters = [blob for node in net.nodes for blob in node.layer.blobs]
    without = [blob for node in net.nodes for blob in _without_gradient(node)]
    data = {id(blob._data) for blob in (*outer, *read, *parameters)}
    return data | {id(blob._diff) for blob in (*outer, *parameters, *without)}


def _is_outer(net: Net, index: int) -> bool:
    return bool(net.blob_loss_weights[index]) or index in net.output_ids or index in net.input_ids


def _without_gradient(node: Node) -> Iterator[Blob]:
    """The bottoms that get no gradient from this node."""
    for blob, needed in zip(node.bottoms, node.bottom_need_backward, strict=True):
        if not (needed and node.needs_backward):
            yield blob
