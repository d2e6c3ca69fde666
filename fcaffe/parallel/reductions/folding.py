from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction


class Folding(Reduction):
    """Base of reductions that pair ranks, and so need a power of two of them.

    Each rank beyond that first gives its buffer to a neighbour, and gets the sum back at the end: two more messages of
    the whole buffer.
    """

    def add_up_between(self, buffer: np.ndarray, number: int, power: int) -> None:
        """Sum over the `power` remaining ranks, of which this is number `number`; see `rank_of`."""
        raise NotImplementedError

    def keep_to_tree(self) -> None:
        pass  # there is no other order, since neighbours meet first

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
