from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.folding import Folding
from fcaffe.parallel.reductions.reduction import register


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
