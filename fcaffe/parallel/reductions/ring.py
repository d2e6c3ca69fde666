from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, cut, register
from fcaffe.tree_order import add_in_tree_order, spare_rows


@register("ring")
class Ring(Reduction):
    """Each rank sends to its right neighbour only: partial sums of a slice go once around, then the finished slice.

    2(p-1) messages of n/p: no rank sends less in all (2(p-1)/p of the buffer), but it takes p-1 steps each way. In the
    order of a tree slices cannot be added on the way: each rank sends them directly to the rank that adds them.
    """

    knows_tree = True
    tree_order = False

    def keep_to_tree(self) -> None:
        self.tree_order = True

    def add_up(self, buffer: np.ndarray) -> None:
        left, right = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        slices = cut(buffer, self.ranks)
        if self.tree_order:
            self._add_own_slice(slices)
        else:
            for step in range(self.ranks - 1):
                mine = slices[(self.rank - step - 1) % self.ranks]
                partial = self.scratch(mine.size)
                self.wire.exchange(slices[(self.rank - step) % self.ranks], right, partial, left)
                np.add(mine, partial, out=mine)
        for step in range(self.ranks - 1):
            finished = slices[(self.rank - step + 1) % self.ranks]
            self.wire.exchange(finished, right, slices[(self.rank - step) % self.ranks], left)

    def _add_own_slice(self, slices: list[np.ndarray]) -> None:
        """Receive all ranks' versions of the slice that is finished here, and add them."""
        mine = slices[(self.rank + 1) % self.ranks]
        rows = self.scratch_rows(self.ranks + spare_rows(self.ranks), mine.size)
        rows[self.rank] = mine
        for distance in range(1, self.ranks):
            to, source = (self.rank + distance) % self.ranks, (self.rank - distance) % self.ranks
            self.wire.exchange(slices[(to + 1) % self.ranks], to, rows[source], source)
        add_in_tree_order(rows[: self.ranks], mine, rows[self.ranks :])
