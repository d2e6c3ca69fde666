from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.folding import Folding
from fcaffe.parallel.reductions.reduction import part_of, register


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
