from __future__ import annotations

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.ordered import Ordered, arrays_of
from fcaffe.parallel.reductions.reduction import part_of, register
from fcaffe.tree_order import Sums, part_of_sums


@register("ring")
class Ring(Ordered):
    """Each rank sends to its right neighbour only: partial sums of a slice go once around, then the finished slice.

    2(p-1) messages of n/p: no rank sends less in all (2(p-1)/p of the buffer), but it takes p-1 steps each way.
    """

    def add_sums(self, sums: Sums, total: Array) -> None:
        ranks, rank = self.ranks, self.rank
        left, right = (rank - 1) % ranks, (rank + 1) % ranks
        slices = [part_of(slice(0, total.size), part, ranks) for part in range(ranks)]
        outgoing = part_of_sums(sums, slices[rank])
        for step in range(ranks - 1):
            mine = slices[(rank - step - 1) % ranks]
            before = [(rank - step - 1 + number) % ranks for number in range(step + 1)]  # ranks that have added to it
            received = self.receive_buffers(before, mine.stop - mine.start)
            self.wire.exchange_each(arrays_of(outgoing), right, arrays_of(received), left)
            outgoing = part_of_sums(sums, mine)
            self.join(outgoing, received)
        self.write_total(outgoing, total[slices[right]])
        for step in range(ranks - 1):
            finished = total[slices[(rank - step + 1) % ranks]]
            self.wire.exchange(finished, right, total[slices[(rank - step) % ranks]], left)
