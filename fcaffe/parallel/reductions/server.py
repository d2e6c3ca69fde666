from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, register


@register("server")
class Server(Reduction):
    """Rank 0 serves parameters: it takes every rank's buffer, adds it to its own, and sends the sum back.

    2(p-1) messages of the whole buffer, one after another at rank 0: what FireCaffe's paper measures its tree against.
    """

    def add_up(self, buffer: np.ndarray) -> None:
        if self.rank:
            self.wire.send(buffer, 0)
            self.wire.receive(buffer, 0)
            return
        given = self.scratch(buffer.size)
        for worker in range(1, self.ranks):
            self.wire.receive(given, worker)
            np.add(buffer, given, out=buffer)
        for worker in range(1, self.ranks):
            self.wire.send(buffer, worker)
