from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from mpi4py import MPI

from fcaffe.errors import FcaffeError
from fcaffe.parallel.reductions.host_memory import HostMemory, Hosts, Rows
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host, part_of, register, rows_of
from fcaffe.tree_order import Node, Sums, Tree

BLOCK = 1 << 16  # floats that are added at a time: they stay in the second cache, and outweigh NumPy's calls


@register("hierarchical")
class Hierarchical(Reduction):
    """Ranks of one host read one another's buffers: each rank adds its slice of all of them.

    Between hosts each rank then sums its slice with the same slice of other hosts, by the reduction `between`. So the
    network carries each host's sum once, in as many streams as the smallest host has ranks.

    Within a host there are no messages but two barriers. Buffers of `allocate` are summed in place; others are copied
    into shared memory and back.
    """

    wraps_another = True

    def __init__(self, comm: MPI.Intracomm, between: str = "auto") -> None:
        super().__init__(comm)
        if between != "auto":
            self.name = f"{self.name}:{between}"
        self.hosts = Hosts(self.comm)
        self.memory = HostMemory(self.hosts.comm, self.comm)
        self.streams = min(self.hosts.sizes)  # ranks of a host that add up; the others have no slice
        self._stand_in: Rows | None = None
        stream = min(self.hosts.comm.rank, self.streams)  # ranks without a slice get the last number
        peers = cast(MPI.Intracomm, self.comm.Split(stream, self.hosts.index))
        self.between = create_on_host(between if stream < self.streams and peers.size > 1 else "null", peers)
        peers.Free()
        self.parts.append(self.between)
        self.counted = self.between.counted
        self.tree: Tree | None = None  # of a plain sum
        self.nodes: list[list[Node]] = []  # of each rank of this host

    def keep_to_tree(self, tree: Tree, nodes: Sequence[list[Node]]) -> None:
        joined = [tree.joined(node for rank in ranks for node in nodes[rank]) for ranks in self.hosts.ranks]
        self.tree, self.nodes = tree, [nodes[rank] for rank in self.hosts.ranks[self.hosts.index]]
        if self.between.ranks > 1:
            self.between.keep_to_tree(tree, joined)

    def allocate(self, count: int) -> np.ndarray:
        return self.memory.allocate(count).own

    def close(self) -> None:
        self.memory.close()
        self.hosts.close()
        super().close()

    def add_up(self, buffer: np.ndarray) -> None:
        for rows in self.memory.rows:
            if found := rows.slice_of(buffer):
                self._add_rows(rows, found, buffer.strides[0] // 4)
                return
        if self._stand_in is None or self._stand_in.own.size < buffer.size:
            self._stand_in = self.memory.allocate(buffer.size)
        copy, count = self._stand_in.own[: buffer.size].reshape(buffer.shape), buffer.shape[-1]
        copy[...] = buffer
        self._add_rows(self._stand_in, slice(0, count), count)
        rows_of(buffer)[0] = rows_of(copy)[0]

    def _add_rows(self, rows: Rows, slice_: slice, distance: int) -> None:
        """Replace this slice of each rank's row by the sum; each rank adds and writes a part of it.

        If a rank has several sums (see `keep_to_tree`), they lie in its row, `distance` floats from one another.
        """
        rank = self.hosts.comm.rank
        mine = part_of(slice_, rank, self.streams) if rank < self.streams else slice(0, 0)
        nodes = self.tree.joined(node for own in self.nodes for node in own) if self.tree else []
        joined = self.scratch_rows(len(nodes), mine.stop - mine.start) if len(nodes) > 1 else rows.own[None, mine]
        rows.barrier()
        for start in range(mine.start, mine.stop, BLOCK):
            block = slice(start, min(start + BLOCK, mine.stop))
            if self.tree is None:
                for other in range(1, len(rows.data)):
                    rows.own[block] += rows.data[(rank + other) % len(rows.data), block]
            else:
                self._join_rows(rows, block, distance, joined[:, start - mine.start : block.stop - mine.start])
            if self.hosts.count == 1:
                rows.data[:, block] = rows.own[block]
        if self.hosts.count > 1:
            self.between.sum(joined)
            rows.data[:, mine] = joined[0]
        rows.barrier()

    def _join_rows(self, rows: Rows, block: slice, distance: int, joined: np.ndarray) -> None:
        """Add up a block in the order of the tree; `joined` receives the sums of the nodes that are left."""
        assert self.tree is not None
        sums: Sums = {}
        for row, own in zip(rows.data, self.nodes, strict=True):
            for index, node in enumerate(own):
                self.tree.join(sums, {node: row[index * distance :][block]})
        for node, values in zip(sorted(sums), joined, strict=True):
            values[:] = sums[node]


@register("shared")
class Shared(Hierarchical):
    """`hierarchical` on one host, without messages."""

    wraps_another = False

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        if self.hosts.count > 1:
            count = self.hosts.count
            self.close()
            raise FcaffeError(
                f"reduction shared: the ranks are on {count} hosts, which share no memory; use hierarchical"
            )
