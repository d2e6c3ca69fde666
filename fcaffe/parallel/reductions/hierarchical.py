from __future__ import annotations

from typing import cast

import numpy as np
from mpi4py import MPI

from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.parallel.reductions.host_memory import HostMemory, Rows
from fcaffe.parallel.reductions.hosts import Hosts
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host, parse_name, part_of, register
from fcaffe.parallel.reductions.shared import blocks
from fcaffe.tree_order import add_in_tree_order, spare_rows


@register("hierarchical")
class Hierarchical(Reduction):
    """Within a host as `shared`; between hosts each rank sums its slice with the same slice of other hosts.

    So the network carries each host's sum once, in as many streams as the smallest host has ranks. `between` names the
    reduction between hosts.
    """

    takes_another = True

    def __init__(self, comm: MPI.Intracomm, between: str = "auto") -> None:
        super().__init__(comm)
        if between != "auto":
            self.name = f"{self.name}:{between}"
        self.hosts = Hosts(self.comm)
        self.alone = max(self.hosts.sizes) == 1  # each rank has a host of its own
        self.streams = min(self.hosts.sizes)
        try:
            self.memory = HostMemory(self.hosts.comm, self.comm)
        except FcaffeError:
            self.hosts.close()
            super().close()
            raise
        self._stand_in: Rows | None = None
        stream = min(self.memory.rank, self.streams)  # the last number: ranks without one
        peers = cast(MPI.Intracomm, self.comm.Split(stream, self.hosts.index))
        self.between = create_on_host(between if stream < self.streams and peers.size > 1 else "null", peers)
        peers.Free()
        self.counted = self.between.counted
        self.exact = parse_name(between)[0].exact  # not that of `self.between`, which differs among the ranks of a host

    def keep_to_tree(self) -> None:
        if not self.hosts.are_subtrees:
            raise UsageError(
                f"reduction {self.name} adds up in the order of a tree only where each host has the same power of two "
                f"of ranks, one after the other (these {self.hosts.count} hosts have {self.hosts.sizes}): start them "
                "so, or use ring or halving"
            )
        if self.between.ranks > 1:
            self.between.keep_to_tree()

    def allocate(self, count: int) -> np.ndarray:
        return aligned_zeros(np, count) if self.alone else self.memory.allocate(count).own

    @property
    def messages(self) -> int:
        return self.between.messages

    @property
    def bytes_sent(self) -> int:
        return self.between.bytes_sent

    def close(self) -> None:
        self.between.close()
        self.memory.close()
        self.hosts.close()
        super().close()

    def add_up(self, buffer: np.ndarray) -> None:
        if self.alone:
            self.between.sum(buffer)
            return
        rows, slice_, foreign = self._rows_of(buffer)
        result, mine = self._sum_mine(rows, slice_)
        rows.data[:, mine] = result[mine]
        self.memory.barrier()
        if foreign:
            buffer[:] = rows.own[slice_]

    def add_up_anywhere(self, buffer: np.ndarray) -> np.ndarray:
        if self.alone:
            return super().add_up_anywhere(buffer)
        rows, slice_, _ = self._rows_of(buffer)
        result, _ = self._sum_mine(rows, slice_)
        self.memory.barrier()
        return result[slice_]

    def _rows_of(self, buffer: np.ndarray) -> tuple[Rows, slice, bool]:
        """Rows of shared memory, the slice of them that holds the buffer, and whether the buffer was copied there."""
        found = self.memory.find(buffer)
        if found is not None:
            return *found, False
        if self._stand_in is None or self._stand_in.own.size < buffer.size:
            self._stand_in = self.memory.allocate(buffer.size)
        self._stand_in.own[: buffer.size] = buffer
        return self._stand_in, slice(0, buffer.size), True

    def _sum_mine(self, rows: Rows, slice_: slice) -> tuple[np.ndarray, slice]:
        """Add this rank's slice over all ranks, into the result row of its host; returns the row and the slice."""
        result = self.memory.result_of(rows)
        has_part = self.memory.rank < self.streams
        mine = part_of(slice_, self.memory.rank, self.streams) if has_part else slice(0, 0)
        self.memory.barrier()
        for block in blocks(mine):
            spare = self.scratch_rows(spare_rows(self.memory.ranks), block.stop - block.start)
            add_in_tree_order(rows.data[:, block], result[block], spare)
        self.between.sum(result[mine])
        return result, mine
