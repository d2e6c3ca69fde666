"""Recomputation: selects the activations that backward recomputes instead of saving them (Chen et al., 2016).

A worked example: four inner products. The backward of each reads its bottom. The output of the second, b, is a
checkpoint, which is saved. The outputs a and c are dropped after forward has read them, and recomputed for backward.

    forward                x -1-> a -2-> b -3-> c -4-> d
    backward of 4          reads c, so 3 runs again: b -> c
    backward of 3          reads b, which is there
    backward of 2          reads a, so 1 runs again: x -> a
    backward of 1          reads x, which is there

So `again` is {4: (3,), 2: (1,)}. Of a long chain of n such layers with every sqrt(n)-th output saved, some 2 sqrt(n)
outputs are live at one time instead of n. In real nets a search (`Recompute.choose`) takes the checkpoints with the
least peak memory plus a price on work. What a node behind overwrites in place is saved.
"""

from __future__ import annotations

from fcaffe.net.blob import Storage
from fcaffe.net.run.layout import peak
from fcaffe.net.run.program import Again, Program, Storages, bytes_of

BUDGETS = 24  # initial numbers of checkpoints
PRICE = 0.2  # of recomputing a whole forward pass, as a fraction of the peak memory without recomputation


Checkpoints = frozenset[int]  # nodes whose outputs are saved in forward


class Recompute:
    """Chooses checkpoints: nodes whose outputs and internal values are saved. Before a backward step that reads dropped
    values, the nodes that compute them run again, from the last checkpoints on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.made: list[Storages] = [
            {} if node.layer.traits.aliases else access.writes | access.saved
            for node, access in zip(program.nodes, program.accesses, strict=True)
        ]
        self.maker = {storage: index for index, made in enumerate(self.made) for storage in made}
        self.free = _repeatable(program)
        self.valid = set[Storage]().union(*(self.made[index] for index in {*range(len(self.made))} - {*self.free}))
        self.wanted = [[key for key in access.back_reads if key in self.maker] for access in program.accesses]
        self.work = [node.layer.macs(node.bottoms, node.tops) for node in program.nodes]
        writes = set[Storage]().union(*(access.writes for access in program.accesses))
        self.forward = max(1, sum(self.work)), max(1, bytes_of(writes))
        self.usual = peak(program, {})
        self._costs: dict[Checkpoints, float] = {}

    def again(self, checkpoints: Checkpoints) -> Again:
        """The nodes to run again, by the node whose backward they precede. Nodes that are not repeatable are saved."""
        valid = self.valid.union(*(self.made[index] for index in checkpoints))
        again: dict[int, tuple[int, ...]] = {}
        for index in range(len(self.program.nodes) - 1, -1, -1):
            wanted: set[int] = set()
            missing = [key for key in self.wanted[index] if key not in valid]
            while missing:
                other = self.maker[missing.pop()]
                if other not in wanted:
                    wanted.add(other)
                    reads = self.program.accesses[other].reads
                    missing += [key for key in reads if key in self.maker and key not in valid]
            if wanted:
                again[index] = tuple(sorted(wanted))
                valid = valid.union(*(self.made[other] for other in wanted))
        return again

    def cost(self, checkpoints: Checkpoints) -> float:
        """The peak memory in bytes plus a price on the recomputation."""
        if checkpoints not in self._costs:
            again = self.again(checkpoints)
            nodes = [node for some in again.values() for node in some]
            work = sum(self.work[node] for node in nodes)
            written = sum(bytes_of(self.program.accesses[node].writes) for node in nodes)
            again_parts = work / self.forward[0], written / self.forward[1]
            extra = self.usual * (PRICE * sum(again_parts) / 2 + 10 * max(0, max(again_parts) - 1))
            self._costs[checkpoints] = peak(self.program, again) + extra
        return self._costs[checkpoints]

    def choose(self) -> Checkpoints:
        """Begin with the best of evenly spread checkpoints, and toggle one at a time while the cost falls."""
        best = min(self._spread(), key=self.cost)
        for _ in range(2):
            before = best
            for index in self.free:
                best = min(best, best ^ {index}, key=self.cost)
            if best == before:
                break
        return best

    def _spread(self) -> list[Checkpoints]:
        """Checkpoints at equal distances in bytes, among the nodes where only their own outputs are live."""
        accesses = self.program.accesses
        sizes = {index: bytes_of(accesses[index].writes) for index in self.free}
        last_use = {key: index for index, access in enumerate(accesses) for key in access.reads}
        narrow, open_until = [], 0
        for index, access in enumerate(accesses):
            if open_until <= index and index in sizes:
                narrow.append(index)
            open_until = max([open_until, *(last_use.get(key, 0) for key in access.writes)])
        total, found = sum(sizes.values()), [frozenset(self.free), frozenset()]
        for parts in range(2, BUDGETS):
            chosen, passed = [], 0
            for index in sizes:
                passed += sizes[index]
                if passed * parts >= total and index in narrow:
                    chosen.append(index)
                    passed = 0
            found.append(frozenset(chosen))
        return found


def choose(program: Program) -> Again:
    """The nodes to run again so that a pass takes the least memory."""
    recompute = Recompute(program)
    return recompute.again(recompute.choose())


def _repeatable(program: Program) -> list[int]:
    """The nodes whose outputs may be recomputed: they write the same values, and nothing is overwritten in place."""
    writers: dict[Storage, list[int]] = {}  # also outside the plan
    for index, node in enumerate(program.nodes):
        for storage in () if node.layer.traits.aliases else {blob.data_storage for blob in node.tops}:
            writers.setdefault(storage, []).append(index)
    return [
        index
        for index, node in enumerate(program.nodes)
        if node.is_repeatable
        and program.accesses[index].writes
        and all(writers.get(storage) == [index] for storage in program.accesses[index].writes)
        and all(index > position for blob in node.bottoms for position in writers.get(blob.data_storage, ())[-1:])
    ]
