from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, cut, register


@register("ring")
class Ring(Reduction):
    """Each rank sends to its right neighbour only: a slice's sum goes once around, then the finished slice does.

    2(p-1) messages of n/p: no rank sends less in all (2(p-1)/p of the buffer), but it takes p-1 steps each way.
    """

    def add_up(self, buffer: np.ndarray) -> None:
        left, right = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        slices = cut(buffer, self.ranks)
        for step in range(self.ranks - 1):
            mine = slices[(self.rank - step - 1) % self.ranks]
            partial = self.scratch(mine.size)
            self.wire.exchange(slices[(self.rank - step) % self.ranks], right, partial, left)
            np.add(mine, partial, out=mine)
        for step in range(self.ranks - 1):
            finished = slices[(self.rank - step + 1) % self.ranks]
            self.wire.exchange(finished, right, slices[(self.rank - step) % self.ranks], left)
