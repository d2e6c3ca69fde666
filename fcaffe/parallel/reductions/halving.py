"""Recursive doubling and halving: ranks exchange with partners at distance 1, 2, 4 …"""

from __future__ import annotations

from mpi4py import MPI

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.ordered import Ordered, arrays_of
from fcaffe.parallel.reductions.reduction import part_of, register
from fcaffe.tree_order import Sums, part_of_sums


class Folding(Ordered):
    """Base of reductions that pair ranks, and so need a power of two of them.

    Each rank beyond that first gives its buffer to a neighbour, and gets the sum back at the end: two more messages of
    the whole buffer.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.power = 1 << (self.ranks.bit_length() - 1)
        self.folded = self.ranks - self.power  # of the first 2 * folded ranks, the odd ones into the even ones

    def add_up_between(self, sums: Sums, total: Array, number: int) -> None:
        """Sum over the `power` remaining ranks; `number` is that of this rank among them (see `rank_of`)."""
        raise NotImplementedError

    def add_sums(self, sums: Sums, total: Array) -> None:
        if self.rank >= 2 * self.folded:
            self.add_up_between(sums, total, self.rank - self.folded)
        elif self.rank % 2:
            self.send_all(sums, self.rank - 1)
            self.wire.receive(total, self.rank - 1)
        else:
            received = self.receive_buffers([self.rank + 1], total.size)
            self.receive_all(received, self.rank + 1)
            self.join(sums, received)
            self.add_up_between(sums, total, self.rank // 2)
            self.wire.send(total, self.rank + 1)

    def rank_of(self, number: int) -> int:
        """The rank of that number among the remaining ones."""
        return number + min(number, self.folded)

    def group_of(self, number: int, distance: int) -> range:
        """The ranks, folded ones too, whose sums this one has before the exchange at that distance."""
        first = number // distance * distance
        return range(self.rank_of(first), self.rank_of(first + distance))


@register("doubling")
class Doubling(Folding):
    """Recursive doubling: partners at distance 1, 2, 4 … exchange their whole buffers, and add them.

    log2(p) messages of the whole buffer, the fewest possible: for short buffers, whose time is the latency.
    """

    def add_up_between(self, sums: Sums, total: Array, number: int) -> None:
        distance = 1
        while distance < self.power:
            partner = self.rank_of(number ^ distance)
            received = self.receive_buffers(self.group_of(number ^ distance, distance), total.size)
            self.wire.exchange_each(arrays_of(sums), partner, arrays_of(received), partner)
            self.join(sums, received)  # the same bits at both, since a + b is b + a
            distance *= 2
        self.write_total(sums, total)


@register("halving")
class Halving(Folding):
    """Recursive halving, then doubling (Rabenseifner): partners at distance 1, 2, 4 … exchange halves of their slices.

    2 log2(p) messages, 2(p-1)/p of the buffer.
    """

    def add_up_between(self, sums: Sums, total: Array, number: int) -> None:
        steps: list[tuple[int, Array, Array]] = []
        held, distance = total, 1
        while distance < self.power:
            partner = self.rank_of(number ^ distance)
            lower, upper = (part_of(slice(0, held.size), half, 2) for half in (0, 1))
            mine, other = (upper, lower) if number & distance else (lower, upper)
            received = self.receive_buffers(self.group_of(number ^ distance, distance), mine.stop - mine.start)
            self.wire.exchange_each(arrays_of(part_of_sums(sums, other)), partner, arrays_of(received), partner)
            sums = part_of_sums(sums, mine)
            self.join(sums, received)
            steps.append((partner, held[mine], held[other]))
            held = held[mine]
            distance *= 2
        self.write_total(sums, held)
        for partner, kept, other_half in reversed(steps):
            self.wire.exchange(kept, partner, other_half, partner)
