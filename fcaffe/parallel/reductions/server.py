from __future__ import annotations

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.ordered import Ordered
from fcaffe.parallel.reductions.reduction import register
from fcaffe.tree_order import Sums


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
