from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.errors import FcaffeError
from fcaffe.parallel.reductions.host_memory import HostMemory, Rows
from fcaffe.parallel.reductions.hosts import Hosts
from fcaffe.parallel.reductions.reduction import Reduction, part_of, register
from fcaffe.tree_order import add_in_tree_order, spare_rows

BLOCK = 1 << 16  # floats that are added at a time: they stay in the second cache, and outweigh NumPy's calls
SHORT = 1 << 12  # floats; every rank adds so few itself, which saves a barrier
CHUNK = 1 << 18  # floats that are copied at a time of a buffer outside of shared memory


@register("shared")
class Shared(Reduction):
    """Ranks of one host read one another's buffers: each rank adds its slice of all of them.

    There are no messages but two barriers, and buffers of `allocate` are not copied. `total` writes each sum once, into
    memory that all ranks read; `sum` writes it to every rank's buffer.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        hosts = Hosts(self.comm)
        hosts.close()
        if hosts.count > 1:
            super().close()
            raise FcaffeError(
                f"reduction shared: the ranks are on {hosts.count} hosts, which share no memory; use hierarchical"
            )
        try:
            self.memory = HostMemory(self.comm, self.comm)
        except FcaffeError:
            super().close()
            raise
        try:
            self._short = self.memory.allocate(2 * SHORT).data.reshape(self.ranks, 2, SHORT)
        except FcaffeError:
            self.close()
            raise
        self._turn = 0
        self._chunks: Rows | None = None

    def keep_to_tree(self) -> None:
        pass  # it has no other order

    def allocate(self, count: int) -> np.ndarray:
        return self.memory.allocate(count).own

    def close(self) -> None:
        self.memory.close()
        super().close()

    def add_up(self, buffer: np.ndarray) -> None:
        if buffer.size <= SHORT:
            self._add_short(buffer)
            return
        found = self.memory.find(buffer)
        if found is None:
            self._add_foreign(buffer)
            return
        rows, slice_ = found
        mine = part_of(slice_, self.rank, self.ranks)
        self.memory.barrier()
        for block in blocks(mine):
            scratch = self.scratch_rows(1 + spare_rows(self.ranks), block.stop - block.start)
            add_in_tree_order(rows.data[:, block], scratch[0], scratch[1:])
            rows.data[:, block] = scratch[0]
        self.memory.barrier()

    def add_up_anywhere(self, buffer: np.ndarray) -> np.ndarray:
        found = self.memory.find(buffer) if buffer.size > SHORT else None
        if found is None:
            return super().add_up_anywhere(buffer)
        rows, slice_ = found
        result = self.memory.result_of(rows)
        self.memory.barrier()
        for block in blocks(part_of(slice_, self.rank, self.ranks)):
            self._add(rows.data[:, block], result[block])
        self.memory.barrier()
        return result[slice_]

    def _add_short(self, buffer: np.ndarray) -> None:
        """Two blocks alternate: before a rank writes to one again, it has passed a barrier since it was read."""
        self._turn ^= 1
        rows = self._short[:, self._turn, : buffer.size]
        rows[self.rank] = buffer
        self.memory.barrier()
        self._add(rows, buffer)

    def _add_foreign(self, buffer: np.ndarray) -> None:
        """Sum a buffer outside of shared memory, chunk by chunk: one chunk is copied in, while the one before is added
        and the one before that copied out."""
        if self._chunks is None:
            self._chunks = self.memory.allocate(2 * CHUNK)
        rows = self._chunks.data.reshape(self.ranks, 2, CHUNK)
        results = self.memory.result_of(self._chunks).reshape(2, CHUNK)
        chunks = [buffer[start : start + CHUNK] for start in range(0, buffer.size, CHUNK)]
        for step in range(len(chunks) + 2):
            this, other = step % 2, (step + 1) % 2
            if step >= 2:
                chunks[step - 2][:] = results[this, : chunks[step - 2].size]
            if 1 <= step <= len(chunks):
                mine = part_of(slice(0, chunks[step - 1].size), self.rank, self.ranks)
                self._add(rows[:, other, mine], results[other, mine])
            if step < len(chunks):
                rows[self.rank, this, : chunks[step].size] = chunks[step]
            if step <= len(chunks):
                self.memory.barrier()

    def _add(self, rows: np.ndarray, out: np.ndarray) -> None:
        add_in_tree_order(rows, out, self.scratch_rows(spare_rows(self.ranks), out.size))


def blocks(slice_: slice) -> list[slice]:
    return [slice(start, min(start + BLOCK, slice_.stop)) for start in range(slice_.start, slice_.stop, BLOCK)]
