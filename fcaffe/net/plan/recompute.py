"""Recomputation: selects the activations that backward recomputes instead of saving them (Chen et al., 2016).

A worked example: four inner products. The backward of each reads its bottom. The output of the second, b, is a
checkpoint, which is saved. The outputs a and c are dropped after forward has read them, and recomputed for backward.

    forward                x -1-> a -2-> b -3-> c -4-> d
    backward of 4          reads c, so 3 runs again: b -> c
    backward of 3          reads b, which is there
    backward of 2          reads a, so 1 runs again: x -> a
    backward of 1          reads x, which is there

So `again` is {4: (3,), 2: (1,)}. Of a long chain of n such layers with every sqrt(n)-th output saved, some 2 sqrt(n)
outputs are live at one time instead of n. Real nets are no chains, and their blobs differ in size. Therefore a search
(`Recompute.choose`) tries sets of checkpoints, and takes the one with the least peak memory plus a price on work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fcaffe.net.plan.live_ranges import fullest
from fcaffe.net.program import Again, Program, bytes_of
from fcaffe.net.storage import Storage

BUDGETS = 24  # initial numbers of checkpoints
PRICE = 0.2  # of recomputing a whole forward pass, as a fraction of the peak memory without recomputation


@dataclass
class Group:
    """Nodes that are recomputed together or not at all.

    For instance a convolution and an in-place Dropout behind it, which overwrites the convolution's output.
    `repeatable`: all of them write the same values the second time.
    """

    nodes: list[int]
    outputs: set[Storage] = field(default_factory=set)
    inputs: set[Storage] = field(default_factory=set)
    internal: set[Storage] = field(default_factory=set)
    repeatable: bool = True
    work: int = 0  # of a forward pass, in multiply-adds

    @property
    def made(self) -> set[Storage]:
        return self.outputs | self.internal


@dataclass(frozen=True)
class Choice:
    """Numbers of the groups whose outputs are saved in forward, and of groups whose outputs are dropped after each use.

    The latter may run more than twice.
    """

    checkpoints: frozenset[int]
    forgotten: frozenset[int] = frozenset()

    def changed(self, number: int) -> Choice:
        """Make this group a checkpoint, or no longer one."""
        return Choice(self.checkpoints ^ {number}, self.forgotten)

    def without(self, number: int) -> Choice:
        """Drop the outputs of this group after each use."""
        return Choice(self.checkpoints - {number}, self.forgotten | {number})


class Recompute:
    """Chooses checkpoints: groups whose outputs and internal values are saved. Those between them are recomputed.

    Before a backward step that reads dropped values, the groups that compute them run again, from the last checkpoints
    on. In all this is less work than one more forward pass.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.groups = _groups(program)
        self.maker = {key: number for number, group in enumerate(self.groups) for key in group.made}
        self.free = [number for number, group in enumerate(self.groups) if group.repeatable and group.outputs]
        self.wanted = [[key for key in access.back_reads if key in self.maker] for access in program.accesses]
        self.forward = (
            max(1, sum(group.work for group in self.groups)),
            max(1, sum(bytes_of(group.outputs) for group in self.groups)),
        )
        self.usual = fullest(program, {})[0]
        self._costs: dict[Choice, float] = {}

    def again(self, choice: Choice) -> Again:
        """The nodes to run again, by the node whose backward they precede. Groups that are not repeatable are saved."""
        valid = set().union(*(self.groups[number].made for number in choice.checkpoints))
        for group in self.groups:
            if not group.repeatable:
                valid |= group.made
        again: dict[int, tuple[int, ...]] = {}
        brief: frozenset[int] = frozenset()
        for index in range(len(self.program.nodes) - 1, -1, -1):
            for number in brief:
                if not {index, index + 1} <= set(self.groups[number].nodes):
                    valid -= self.groups[number].made
            wanted: set[int] = set()
            missing = [key for key in self.wanted[index] if key not in valid]
            while missing:
                number = self.maker[missing.pop()]
                if number not in wanted:
                    wanted.add(number)
                    missing += [key for key in self.groups[number].inputs if key in self.maker and key not in valid]
            if wanted:
                again[index] = tuple(sorted(node for number in wanted for node in self.groups[number].nodes))
                valid |= set().union(*(self.groups[number].made for number in wanted))
            brief = choice.forgotten & (wanted | {self.maker[key] for key in self.wanted[index]})
        return again

    def cost(self, choice: Choice) -> float:
        """The peak memory in bytes plus a price on the recomputation."""
        if choice not in self._costs:
            again = self.again(choice)
            again_parts = self._work(again) / self.forward[0], self.program.computed_again(again) / self.forward[1]
            extra = self.usual * (PRICE * sum(again_parts) / 2 + 10 * max(0, max(again_parts) - 1))
            self._costs[choice] = fullest(self.program, again)[0] + extra
        return self._costs[choice]

    def _work(self, again: Again) -> int:
        firsts = {group.nodes[0]: group.work for group in self.groups}
        return sum(firsts.get(node, 0) for nodes in again.values() for node in nodes)

    def choose(self) -> Choice:
        """The best choice of a greedy search.

        It begins with evenly spread checkpoints, toggles one at a time while the cost falls, and then drops values that
        are live at the peak.
        """
        best = min(self._spread(), key=self.cost)
        for _ in range(2):
            before = best
            for number in self.free:
                best = min(best, best.changed(number), key=self.cost)
            if best == before:
                break
        for _ in self.groups:
            _, full = fullest(self.program, self.again(best))
            numbers = {self.maker[key] for key in full if key in self.maker}.intersection(self.free)
            better = min((best.without(number) for number in sorted(numbers)), key=self.cost, default=best)
            if self.cost(better) >= self.cost(best):
                break
            best = better
        return best

    def _spread(self) -> list[Choice]:
        """Checkpoints at equal distances in bytes, among the groups where only their own outputs are live."""
        sizes = {number: bytes_of(self.groups[number].outputs) for number in self.free}
        last_use = {key: number for number, group in enumerate(self.groups) for key in group.inputs}
        narrow, open_until = [], 0
        for number, group in enumerate(self.groups):
            if open_until <= number and number in sizes:
                narrow.append(number)
            open_until = max([open_until, *(last_use.get(key, 0) for key in group.outputs)])
        total, found = sum(sizes.values()), [Choice(frozenset(self.free)), Choice(frozenset())]
        for parts in range(2, BUDGETS):
            chosen, passed = [], 0
            for number in sizes:
                passed += sizes[number]
                if passed * parts >= total and number in narrow:
                    chosen.append(number)
                    passed = 0
            found.append(Choice(frozenset(chosen)))
        return found


def choose(program: Program) -> Again:
    """The nodes to run again so that a pass takes the least memory."""
    recompute = Recompute(program)
    return recompute.again(recompute.choose())


def _groups(program: Program) -> list[Group]:
    """The groups of a program, in the order of their first nodes."""
    nodes, accesses = program.nodes, program.accesses
    first = list(range(len(nodes)))  # node of the group of each node

    def leader(index: int) -> int:
        while first[index] != index:
            index = first[index]
        return index

    def join(a: int, b: int) -> None:
        a, b = sorted((leader(a), leader(b)))
        first[b] = a

    # All storages count here, also those outside the plan: values that were overwritten in place are lost.
    writers: dict[Storage, list[int]] = {}
    for index, node in enumerate(nodes):
        for blob in node.tops:
            writers.setdefault(blob.data_storage, []).append(index)
    for index, node in enumerate(nodes):
        for storage in {blob.data_storage for blob in node.blobs}:
            makers = writers.get(storage, [])
            if makers and (index in makers or index < makers[-1]):
                join(index, makers[0])
    groups: dict[int, Group] = {}
    for index, (node, access) in enumerate(zip(nodes, accesses, strict=True)):
        group = groups.setdefault(leader(index), Group([]))
        group.nodes.append(index)
        group.outputs |= access.writes
        group.inputs |= access.reads
        group.internal |= access.saved
        macs = getattr(node.layer, "macs", None)
        group.work += macs(node.bottoms, node.tops) if macs else 0
        group.repeatable &= node.layer.traits.repeatable and bool(node.bottoms)
    for group in groups.values():
        group.inputs -= group.outputs
    return list(groups.values())
