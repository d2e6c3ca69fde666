from __future__ import annotations

from typing import cast

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel.reductions.host_memory import Rows
from fcaffe.parallel.reductions.reduction import create_on_host, register
from fcaffe.parallel.reductions.shared import Shared


@register("hierarchical")
class Hierarchical(Shared):
    """Within a host as `shared`; between hosts each rank sums its slice with the same slice of other hosts.

    So the network carries each host's sum once, in as many streams as the smallest host has ranks. `between` names the
    reduction between hosts.
    """

    takes_another = True

    def __init__(self, comm: MPI.Intracomm, between: str = "auto") -> None:
        super().__init__(comm)
        if between != "auto":
            self.name = f"{self.name}:{between}"
        stream = min(self.memory.rank, self.streams)  # the last number: ranks without one
        peers = cast(MPI.Intracomm, self.comm.Split(stream, self.hosts.index))
        self.between = create_on_host(between if stream < self.streams and peers.size > 1 else "null", peers)
        peers.Free()
        self.counted = self.between.counted

    def check_hosts(self) -> None:
        pass

    def keep_to_tree(self) -> None:
        if not self.hosts.are_subtrees:
            raise UsageError(
                f"reduction {self.name} adds up in the order of a tree only where each host has the same power of two "
                f"of ranks, one after the other (these {self.hosts.count} hosts have {self.hosts.sizes}): start them "
                "so, or use ring or halving"
            )
        if self.between.ranks > 1:
            self.between.keep_to_tree()

    @property
    def messages(self) -> int:
        return self.between.messages

    @property
    def bytes_sent(self) -> int:
        return self.between.bytes_sent

    def close(self) -> None:
        self.between.close()
        super().close()

    def write(self, rows: Rows, block: slice, sums: np.ndarray) -> None:
        rows.own[block] = sums

    def add_other_hosts(self, rows: Rows, mine: slice) -> None:
        total = rows.own[mine]
        self.between.sum(total)
        for rank, row in enumerate(rows.data):
            if rank != self.memory.rank:
                row[mine] = total
