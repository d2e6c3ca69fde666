from __future__ import annotations

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.ordered import Ordered, arrays_of
from fcaffe.parallel.reductions.reduction import cut, part_of, register
from fcaffe.parallel.reductions.wire import wait
from fcaffe.tree_order import Sums, part_of_sums


@register("server")
class Server(Ordered):
    """Rank 0 is a parameter server: it receives every rank's buffer, adds it to its own, and sends the sum back.

    2(p-1) messages of the whole buffer, one after another at rank 0. FireCaffe's paper compares its tree with this.
    """

    def add_sums(self, sums: Sums, total: Array) -> None:
        if self.rank:
            self.send_all(sums, 0)
            self.wire.receive(total, 0)
            return
        for worker in range(1, self.ranks):
            received = self.receive_buffers([worker], total.size)
            self.receive_all(received, worker)
            self.join(sums, received)
        self.write_total(sums, total)
        for worker in range(1, self.ranks):
            self.wire.send(total, worker)


@register("sharded-server")
class ShardedServer(Ordered):
    """Each rank is the server of one slice: it receives the slice of all ranks, adds them, and sends the sum to all.

    2(p-1) messages of n/p each way, the bytes of a ring. The messages of one way travel at the same time, so a rank
    waits twice, whatever p is. That suits ranks that have to wait for a core.
    """

    def add_sums(self, sums: Sums, total: Array) -> None:
        slices = [part_of(slice(0, total.size), part, self.ranks) for part in range(self.ranks)]
        mine = slices[self.rank]
        others = [(self.rank + distance) % self.ranks for distance in range(1, self.ranks)]
        received = {other: self.receive_buffers([other], mine.stop - mine.start) for other in others}
        requests = [
            self.wire.start_receive(row, other) for other in reversed(others) for row in arrays_of(received[other])
        ]
        for other in others:
            requests += [self.wire.start_send(row, other) for row in arrays_of(part_of_sums(sums, slices[other]))]
        wait(requests)
        own = part_of_sums(sums, mine)
        for other in sorted(others):
            self.join(own, received[other])
        self.write_total(own, total[mine])
        self.wire.exchange_all([total[mine]] * self.ranks, cut(total, self.ranks))
