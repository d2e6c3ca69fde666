from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.errors import FcaffeError
from fcaffe.parallel.reductions.host_memory import HostMemory, Rows
from fcaffe.parallel.reductions.hosts import Hosts
from fcaffe.parallel.reductions.reduction import Reduction, part_of, register
from fcaffe.tree_order import add_in_tree_order, spare_rows

BLOCK = 1 << 16  # floats that are added at a time: they stay in the second cache, and outweigh NumPy's calls


@register("shared")
class Shared(Reduction):
    """Ranks of one host read one another's buffers: each rank adds its slice of all of them.

    There are no messages but two barriers. Buffers of `allocate` are summed in place; others are copied into shared
    memory and back.
    """

    knows_tree = True

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.hosts = Hosts(self.comm)
        self.streams = min(self.hosts.sizes)  # ranks of a host that add up; the others have no slice
        self._stand_in: Rows | None = None
        try:
            self.check_hosts()
            self.memory = HostMemory(self.hosts.comm, self.comm)
        except FcaffeError:
            self.hosts.close()
            super().close()
            raise

    def check_hosts(self) -> None:
        if self.hosts.count > 1:
            raise FcaffeError(
                f"reduction shared: the ranks are on {self.hosts.count} hosts, which share no memory; use hierarchical"
            )

    def allocate(self, count: int) -> np.ndarray:
        return self.memory.allocate(count).own

    def close(self) -> None:
        self.memory.close()
        self.hosts.close()
        super().close()

    def add_up(self, buffer: np.ndarray) -> None:
        found = self.memory.find(buffer)
        if found is not None:
            self._add_rows(*found)
            return
        if self._stand_in is None or self._stand_in.own.size < buffer.size:
            self._stand_in = self.memory.allocate(buffer.size)
        copy = self._stand_in.own[: buffer.size]
        copy[:] = buffer
        self._add_rows(self._stand_in, slice(0, buffer.size))
        buffer[:] = copy

    def _add_rows(self, rows: Rows, slice_: slice) -> None:
        """Replace this slice of all rows by the sum. Each rank adds and writes a part of it."""
        memory = self.memory
        mine = part_of(slice_, memory.rank, self.streams) if memory.rank < self.streams else slice(0, 0)
        memory.barrier()
        for start in range(mine.start, mine.stop, BLOCK):
            block = slice(start, min(start + BLOCK, mine.stop))
            scratch = self.scratch_rows(1 + spare_rows(memory.ranks), block.stop - block.start)
            add_in_tree_order(rows.data[:, block], scratch[0], scratch[1:])
            self.write(rows, block, scratch[0])
        self.add_other_hosts(rows, mine)
        memory.barrier()

    def write(self, rows: Rows, block: slice, sums: np.ndarray) -> None:
        rows.data[:, block] = sums

    def add_other_hosts(self, rows: Rows, mine: slice) -> None:
        """Complete this rank's slice of all rows, where there are several hosts."""
