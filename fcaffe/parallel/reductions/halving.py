"""Recursive doubling and halving: ranks exchange with partners at distance 1, 2, 4 …"""

from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, part_of, register


class Folding(Reduction):
    """Base of reductions that pair ranks, and so need a power of two of them.

    Each rank beyond that first gives its buffer to a neighbour, and gets the sum back at the end: two more messages of
    the whole buffer.
    """

    knows_tree = True  # neighbours meet first

    def add_up_between(self, buffer: np.ndarray, number: int, power: int) -> None:
        """Sum over the `power` remaining ranks, of which this is number `number`; see `rank_of`."""
        raise NotImplementedError

    def add_up(self, buffer: np.ndarray) -> None:
        power = 1 << (self.ranks.bit_length() - 1)
        folded = self.ranks - power  # of the first 2 * folded ranks, the odd ones are folded into the even ones
        if self.rank >= 2 * folded:
            self.add_up_between(buffer, self.rank - folded, power)
        elif self.rank % 2:
            self.wire.send(buffer, self.rank - 1)
            self.wire.receive(buffer, self.rank - 1)
        else:
            given = self.scratch(buffer.size)
            self.wire.receive(given, self.rank + 1)
            np.add(buffer, given, out=buffer)
            self.add_up_between(buffer, self.rank // 2, power)
            self.wire.send(buffer, self.rank + 1)

    def rank_of(self, number: int, power: int) -> int:
        """The rank of that number among the remaining ones."""
        folded = self.ranks - power
        return 2 * number if number < folded else number + folded


@register("doubling")
class Doubling(Folding):
    """Recursive doubling: partners at distance 1, 2, 4 … exchange their whole buffers, and add them.

    log2(p) messages of the whole buffer, the fewest possible: for short buffers, whose time is the latency.
    """

    def add_up_between(self, buffer: np.ndarray, number: int, power: int) -> None:
        partial = self.scratch(buffer.size)
        distance = 1
        while distance < power:
            partner = self.rank_of(number ^ distance, power)
            self.wire.exchange(buffer, partner, partial, partner)
            np.add(buffer, partial, out=buffer)  # the same bits at both, since a + b is b + a
            distance *= 2


@register("halving")
class Halving(Folding):
    """Recursive halving, then doubling (Rabenseifner): partners at distance 1, 2, 4 … exchange halves of their slices.

    2 log2(p) messages, 2(p-1)/p of the buffer.
    """

    def add_up_between(self, buffer: np.ndarray, number: int, power: int) -> None:
        steps: list[tuple[int, np.ndarray, np.ndarray]] = []
        held = slice(0, buffer.size)
        distance = 1
        while distance < power:
            partner = self.rank_of(number ^ distance, power)
            lower, upper = part_of(held, 0, 2), part_of(held, 1, 2)
            held, other_half = (upper, lower) if number & distance else (lower, upper)
            kept, given = buffer[held], buffer[other_half]
            partial = self.scratch(kept.size)
            self.wire.exchange(given, partner, partial, partner)
            np.add(kept, partial, out=kept)
            steps.append((partner, kept, given))
            distance *= 2
        for partner, kept, given in reversed(steps):
            self.wire.exchange(kept, partner, given, partner)
