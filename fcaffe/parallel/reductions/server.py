from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, cut, register
from fcaffe.tree_order import add_in_tree_order, left_leaves, spare_rows


@register("server")
class Server(Reduction):
    """Rank 0 is a parameter server: it receives every rank's buffer, adds it to its own, and sends the sum back.

    2(p-1) messages of the whole buffer, one after another at rank 0. FireCaffe's paper compares its tree with this.
    """

    knows_tree = True

    def add_up(self, buffer: np.ndarray) -> None:
        if self.rank:
            self.wire.send(buffer, 0)
            self.wire.receive(buffer, 0)
            return
        self._receive(0, self.ranks, buffer, self.scratch((self.ranks - 1).bit_length() * buffer.size))
        for worker in range(1, self.ranks):
            self.wire.send(buffer, worker)

    def _receive(self, first: int, count: int, sums: np.ndarray, spare: np.ndarray) -> None:
        """Fill `sums` with the sum over `count` ranks from `first` on; `spare` holds log2(count) more such buffers."""
        if count == 1:
            if first:  # rank 0's is there
                self.wire.receive(sums, first)
            return
        left = left_leaves(count)
        given, rest = spare[: sums.size], spare[sums.size :]
        self._receive(first, left, sums, spare)
        self._receive(first + left, count - left, given, rest)
        np.add(sums, given, out=sums)


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
