from __future__ import annotations

from typing import cast

import numpy as np
from mpi4py import MPI

from fcaffe.errors import FcaffeError, UsageError
from fcaffe.parallel.reductions.host_memory import HostMemory, Rows
from fcaffe.parallel.reductions.hosts import Hosts
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host, part_of, register
from fcaffe.tree_order import add_in_tree_order, spare_rows

BLOCK = 1 << 16  # floats that are added at a time: they stay in the second cache, and outweigh NumPy's calls


@register("hierarchical")
class Hierarchical(Reduction):
    """Ranks of one host read one another's buffers: each rank adds its slice of all of them.

    Between hosts each rank then sums its slice with the same slice of other hosts, by the reduction `between`. So the
    network carries each host's sum once, in as many streams as the smallest host has ranks.

    Within a host there are no messages but two barriers. Buffers of `allocate` are summed in place; others are copied
    into shared memory and back.
    """

    knows_tree = True
    takes_another = True

    def __init__(self, comm: MPI.Intracomm, between: str = "auto") -> None:
        super().__init__(comm)
        if between != "auto":
            self.name = f"{self.name}:{between}"
        self.hosts = Hosts(self.comm)
        self.memory = HostMemory(self.hosts.comm, self.comm)
        self.streams = min(self.hosts.sizes)  # ranks of a host that add up; the others have no slice
        self._stand_in: Rows | None = None
        stream = min(self.hosts.comm.rank, self.streams)  # the last number: ranks without one
        peers = cast(MPI.Intracomm, self.comm.Split(stream, self.hosts.index))
        self.between = create_on_host(between if stream < self.streams and peers.size > 1 else "null", peers)
        peers.Free()
        self.counted = self.between.counted

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

    def allocate(self, count: int) -> np.ndarray:
        return self.memory.allocate(count).own

    def close(self) -> None:
        self.between.close()
        self.memory.close()
        self.hosts.close()
        super().close()

    def add_up(self, buffer: np.ndarray) -> None:
        for rows in self.memory.rows:
            if found := rows.slice_of(buffer):
                self._add_rows(rows, found)
                return
        if self._stand_in is None or self._stand_in.own.size < buffer.size:
            self._stand_in = self.memory.allocate(buffer.size)
        copy = self._stand_in.own[: buffer.size]
        copy[:] = buffer
        self._add_rows(self._stand_in, slice(0, buffer.size))
        buffer[:] = copy

    def _add_rows(self, rows: Rows, slice_: slice) -> None:
        """Replace this slice of all rows by the sum. Each rank adds and writes a part of it."""
        ranks, rank = rows.data.shape[0], self.hosts.comm.rank
        mine = part_of(slice_, rank, self.streams) if rank < self.streams else slice(0, 0)
        rows.barrier()
        for start in range(mine.start, mine.stop, BLOCK):
            block = slice(start, min(start + BLOCK, mine.stop))
            scratch = self.scratch_rows(1 + spare_rows(ranks), block.stop - block.start)
            add_in_tree_order(rows.data[:, block], scratch[0], scratch[1:])
            if self.hosts.count == 1:
                rows.data[:, block] = scratch[0]
            else:
                rows.own[block] = scratch[0]
        if self.hosts.count > 1:
            self.between.sum(rows.own[mine])
            for other in range(ranks):
                if other != rank:
                    rows.data[other, mine] = rows.own[mine]
        rows.barrier()


@register("shared")
class Shared(Hierarchical):
    """`hierarchical` on one host, without messages."""

    takes_another = False

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        if self.hosts.count > 1:
            count = self.hosts.count
            self.close()
            raise FcaffeError(
                f"reduction shared: the ranks are on {count} hosts, which share no memory; use hierarchical"
            )
