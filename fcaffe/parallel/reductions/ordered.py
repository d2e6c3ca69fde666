"""Ordered: base of the reductions that can add up in the order of a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpi4py import MPI

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction, rows_of
from fcaffe.parallel.reductions.wire import wait
from fcaffe.tree_order import Node, Sums, Tree, copy_into

WHOLE: Node = (0, 1)  # the node of a plain sum


class Ordered(Reduction):
    """A reduction whose ranks send one another sums, and join them.

    In a plain sum each rank has one summand, and sums are added as they come. After `keep_to_tree` they are added in
    the order of a `Tree`, whose leaves are the shards of a batch. Then a rank may have several sums: those of the nodes
    that cover its shards, each in a row of its buffer. A message becomes one for each sum, until they can be added.

    A subclass overrides `add_sums`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self._used = 0  # floats of the scratch memory
        self._joined: dict[tuple[int, ...], list[Node]] = {}
        self.tree: Tree | None = None  # of a plain sum
        self.nodes: Sequence[list[Node]] = [[WHOLE]] * self.ranks

    def keep_to_tree(self, tree: Tree, nodes: Sequence[list[Node]]) -> None:
        self.tree, self.nodes = tree, nodes
        self._joined.clear()

    def add_sums(self, sums: Sums, total: Array) -> None:
        """Leave in `total` the root's sum over all ranks. It may be the memory of one of this rank's `sums`."""
        raise NotImplementedError

    def add_up(self, buffer: Array) -> None:
        rows = rows_of(buffer)
        self._used = 0
        self.add_sums(dict(zip(self.nodes[self.rank], rows, strict=False)), rows[0])

    def joined(self, ranks: Iterable[int]) -> list[Node]:
        """The nodes of these ranks after they have joined their sums."""
        if self.tree is None:
            return [WHOLE]
        key = tuple(ranks)
        if key not in self._joined:
            self._joined[key] = self.tree.joined(node for rank in key for node in self.nodes[rank])
        return self._joined[key]

    def receive_buffers(self, ranks: Iterable[int], size: int) -> Sums:
        """Scratch memory for the joined sums of these ranks. Valid until the end of `add_sums`, but in plain sums only
        until the next `join`."""
        nodes = self.joined(ranks)
        start, self._used = self._used, self._used + len(nodes) * size
        rows = self.scratch(self._used)[start:].reshape(len(nodes), size)
        return dict(zip(nodes, rows, strict=True))

    def join(self, sums: Sums, received: Sums) -> None:
        if self.tree is None:
            sums[WHOLE] += received[WHOLE]
            self._used = 0
        else:
            self.tree.join(sums, received)

    def receive_all(self, received: Sums, source: int) -> None:
        wait([self.wire.start_receive(array, source) for array in arrays_of(received)])

    def send_all(self, sums: Sums, to: int) -> None:
        wait([self.wire.start_send(array, to) for array in arrays_of(sums)])

    def write_total(self, sums: Sums, total: Array) -> None:
        """Copy the sum over all ranks into `total`."""
        (found,) = sums.values()
        copy_into(total, found)


def arrays_of(sums: Sums) -> list[Array]:
    """The arrays of the sums in the order of nodes, which is also the order of messages."""
    return [sums[node] for node in sorted(sums)]
