from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, part_of, register


@register("halving")
class Halving(Reduction):
    """Recursive halving, then doubling (Rabenseifner): partners at distance 1, 2, 4 … swap halves of what they hold.

    2 log2(p) messages, 2(p-1)/p of the buffer. Where p is no power of two, the ranks that are too many first give
    their buffers to a neighbour and get the sum back at the end: two messages of the whole buffer more.
    """

    def keep_to_tree(self) -> None:
        pass  # it has no other order, since neighbours swap first

    def add_up(self, buffer: np.ndarray) -> None:
        power = 1 << (self.ranks.bit_length() - 1)
        folded = self.ranks - power  # of the first 2 * folded ranks, the odd ones are folded into the even ones
        if self.rank >= 2 * folded:
            self._exchange_halves(buffer, self.rank - folded, power, folded)
        elif self.rank % 2:
            self.wire.send(buffer, self.rank - 1)
            self.wire.receive(buffer, self.rank - 1)
        else:
            given = self.scratch(buffer.size)
            self.wire.receive(given, self.rank + 1)
            np.add(buffer, given, out=buffer)
            self._exchange_halves(buffer, self.rank // 2, power, folded)
            self.wire.send(buffer, self.rank + 1)

    def _exchange_halves(self, buffer: np.ndarray, number: int, power: int, folded: int) -> None:
        """`number` is this rank's among the `power` ranks that are not folded away."""
        steps: list[tuple[int, np.ndarray, np.ndarray]] = []
        held = slice(0, buffer.size)
        distance = 1
        while distance < power:
            other = number ^ distance
            partner = 2 * other if other < folded else other + folded
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
