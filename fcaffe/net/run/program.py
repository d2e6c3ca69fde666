"""Program: the work of whole passes as a list of steps, each with the memory that it reads and writes.

A worked example. The graph is conv -> relu (in place) -> loss, and conv and relu are fused:

    step  what                 reads        writes
    0     forward conv+relu    data         y, s (which values of y are positive)
    1     forward loss         y            p (saved for backward)
    2     backward loss        p            dy
    3     backward conv+relu   data, s, dy  -
    4     the rest of that     dy           the gradient of its bottom, if anybody asks for it

A convolution has read what it saved before it writes the gradient of its bottom, which may therefore lie where s lay:
so its backward is two steps. `y` is wanted from step 0 to step 1, `s` from 0 to 3, `p` from 1 to 2, `dy` from 2 to 4:
those are their live ranges. Storages whose live ranges do not meet may lie at one offset of the arena. `data` has
memory of its own, as has all that comes from outside or is read there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fcaffe.net.blob import Blob, Storage
from fcaffe.net.node import Node
from fcaffe.net.parameters import Parameters
from fcaffe.net.run.replay import Replay

Again = Mapping[int, tuple[int, ...]]  # index of a node -> the nodes whose forward runs again before its backward
Storages = dict[Storage, None]  # a set in the order of the program's nodes, so that plans are the same in each process


@dataclass
class Access:
    """The storages that a node reads and writes, forward and backward."""

    reads: Storages = field(default_factory=dict)
    writes: Storages = field(default_factory=dict)
    saved: Storages = field(default_factory=dict)  # of its layer's own, which forward writes for backward
    back_reads: Storages = field(default_factory=dict)
    back_writes: Storages = field(default_factory=dict)


@dataclass
class Step:
    """What a step reads and writes."""

    reads: Storages
    writes: Storages
    before: int | None = None  # of a forward that runs again, the node whose backward needs it


class Program:
    """Nodes that run in this order, then, if there are `gradients`, backward in the opposite order.

    `activations`, `gradients` and `internal` values (saved for backward) are the storages that serve within one pass,
    so that they may lie in an arena: no `outer` blobs, which are given or read from outside, no parameters, no
    gradients that no node writes and so stay zero, and no blobs of user code. `overwritten`: gradients that nodes write
    over those of their tops, in whose memory they lie. `final_from`: for each node, the offset from which on the flat
    gradients are final after its backward.
    """

    def __init__(self, nodes: Sequence[Node], outer: Iterable[Blob], parameters: Parameters, gradients: bool) -> None:
        self.nodes = list(nodes)
        self.final_from = parameters.final_offsets([node.layer.layers for node in nodes])
        self.inference = not gradients
        self._outer = list(outer)
        self._varying = {blob for node in nodes if node.layer.traits.shapes_by_values for blob in node.tops}
        self._planned = [blob for node in nodes for blob in node.blobs if blob not in self._varying]
        self.trace()

    def trace(self) -> None:
        """Find out which node reads and writes what, after shapes have changed."""
        self._fixed = self._outside()
        self._find_accesses()
        if early := self._read_before_written():
            self._fixed |= early
            self._find_accesses()
        self.overwritten = self._overwritten()
        for access in self.accesses:
            access.back_reads = {self.overwritten.get(storage, storage): None for storage in access.back_reads}
            access.back_writes = {self.overwritten.get(storage, storage): None for storage in access.back_writes}

    def _find_accesses(self) -> None:
        self.activations: Storages = {}
        self.gradients: Storages = {}
        self.internal: Storages = {}
        self.accesses = [self._access(node) for node in self.nodes]

    @property
    def versions(self) -> tuple[int, ...]:
        """A value that changes with a blob's shape or memory, except for blobs whose shapes depend on values."""
        return tuple([blob.version for blob in self._planned])

    @functools.cached_property
    def replay(self) -> Replay | None:
        """The replay of its forward pass for inference, on an engine that records calls."""
        records = self.inference and self.nodes and self.nodes[0].layer.engine.records
        return Replay(self.nodes, self.nodes[0].layer.engine) if records else None

    def steps(self, again: Again) -> list[Step]:
        """The steps of a whole pass, forward and backward, in which these nodes run again."""
        steps = [Step(access.reads, access.writes | access.saved) for access in self.accesses]
        for index in () if self.inference else range(len(self.nodes) - 1, -1, -1):
            for other in again.get(index, ()):
                access = self.accesses[other]
                steps.append(Step(access.reads, access.writes | access.saved, before=index))
            if self.nodes[index].needs_backward:
                steps += self._backward_steps(index)
        return steps

    def unwritten(self) -> list[Storage]:
        """The gradients that backward reads and no node writes, so they are zeros, such as that of an output."""
        written: set[Storage] = set()
        found: Storages = {}
        for node in reversed(self.nodes):
            weights = zip(node.layer.loss_weights, node.tops, strict=False)
            written.update(blob.diff_storage for weight, blob in weights if weight)
            if not self.inference and node.needs_backward:
                found.update((blob.diff_storage, None) for blob in node.tops if blob.diff_storage not in written)
                written.update(blob.diff_storage for blob in node.asked())
        return list(found)

    def _backward_steps(self, index: int) -> Iterator[Step]:
        access, node = self.accesses[index], self.nodes[index]
        reads = access.back_reads
        if node.layer.traits.reads_before_writing and len(node.bottoms) == 1:
            yield Step(reads, {})
            reads = {storage: None for storage in reads if storage in self.gradients}
        yield Step(reads, access.back_writes)

    def _access(self, node: Node) -> Access:
        bottoms, tops = node.bottoms, node.tops
        access = Access()
        access.reads = self._within((blob.data_storage for blob in bottoms), self.activations)
        access.writes = self._within((blob.data_storage for blob in tops), self.activations)
        if self.inference:
            return access
        saved = node.saved()
        own = [blob for blob in saved if blob not in node.blobs]
        access.saved = self._within((blob.data_storage for blob in own), self.internal)
        if node.needs_backward:
            given = (blob.data_storage for blob in saved if blob in node.blobs)
            access.back_reads = self._within(given, self.activations) | access.saved
            access.back_reads |= self._within((blob.diff_storage for blob in tops), self.gradients)
            access.back_writes = self._within((blob.diff_storage for blob in node.asked()), self.gradients)
        return access

    def _overwritten(self) -> dict[Storage, Storage]:
        """The gradients that nodes may write over those of their tops, each with the first one in that memory."""
        last, found = dict[Storage, int](), dict[Storage, Storage]()
        for index, access in enumerate(self.accesses):  # backward runs in the opposite order
            for storage in access.back_reads | access.back_writes:
                last.setdefault(storage, index)
        written: Storages = {}
        for node, access in zip(self.nodes[::-1], self.accesses[::-1], strict=True):
            if access.back_writes and node.overwrites_gradient:
                dx, dy = node.bottoms[0].diff_storage, node.tops[0].diff_storage
                fits = dx.nbytes == dy.nbytes and dx not in written and dx in access.back_writes
                if fits and dy in access.back_reads and self.accesses[last[dy]] is access:
                    found[dx] = found.get(dy, dy)
            written |= access.back_writes
        return found

    def _within(self, storages: Iterable[Storage], kind: Storages) -> Storages:
        """The storages among these that serve within one pass. Adds them to the set of this kind."""
        found = {storage: None for storage in storages if storage not in self._fixed and storage.size}
        kind |= found
        return found

    def _outside(self) -> set[Storage]:
        """The storages that do not serve within one pass."""
        outer = [
            *self._outer,
            *(blob for node in self.nodes if node.layer.traits.runs_user_code for blob in node.blobs),
            *(blob for node in self.nodes if not node.is_ours for blob in node.tops),  # not computed again
            *self._varying,
        ]
        sources = [blob for node in self.nodes if not node.bottoms for blob in node.tops]
        parameters = [blob for node in self.nodes for layer in node.layer.layers for blob in layer.blobs]
        without = [
            blob
            for node in self.nodes
            for blob, down in zip(node.bottoms, node.bottom_need_backward, strict=True)
            if not (down and node.needs_backward)
        ]
        data = {blob.data_storage for blob in (*outer, *sources, *parameters)}
        return data | {blob.diff_storage for blob in (*outer, *parameters, *without)}

    def _read_before_written(self) -> set[Storage]:
        """The storages that a step reads before any step writes them, so that their values count."""
        written: set[Storage] = set()
        early: set[Storage] = set()
        for step in self.steps({}):
            early.update(storage for storage in step.reads if storage not in written)
            written.update(step.writes)
        return early


def bytes_of(storages: Iterable[Storage]) -> int:
    return sum(storage.nbytes for storage in storages)
