from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, cut, register
from fcaffe.tree_order import add_in_tree_order, spare_rows


@register("sharded-server")
class ShardedServer(Reduction):
    """Each rank is the server of one slice: it receives the slice of all ranks, adds them, and sends the sum to all.

    2(p-1) messages of n/p each way, the bytes of a ring. The messages of one way travel at the same time, so a rank
    waits twice, whatever p is. That suits ranks that have to wait for a core.
    """

    knows_tree = True

    def add_up(self, buffer: np.ndarray) -> None:
        slices = cut(buffer, self.ranks)
        mine = slices[self.rank]
        rows = self.scratch_rows(self.ranks + spare_rows(self.ranks), mine.size)
        rows[self.rank] = mine
        self.wire.exchange_all(slices, rows[: self.ranks])
        add_in_tree_order(rows[: self.ranks], mine, rows[self.ranks :])
        self.wire.exchange_all([mine] * self.ranks, slices)
