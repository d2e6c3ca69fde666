from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.parallel.reductions.host_memory import Hosts
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host, register
from fcaffe.parallel.sizes import best_reduction
from fcaffe.tree_order import Node, Tree


@register("auto")
class Auto(Reduction):
    """Another reduction for each length of buffer, picked by the hosts and ranks; see `pick`.

    If the hosts have too little shared memory for the buffer that is allocated, it picks reductions that need none.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        hosts = Hosts(self.comm)
        self.sizes = hosts.sizes
        hosts.close()
        self.picked: dict[str, Reduction] = {}  # by name
        self._order: tuple[Tree, Sequence[list[Node]]] | None = None

    def keep_to_tree(self, tree: Tree, nodes: Sequence[list[Node]]) -> None:
        self._order = tree, nodes

    def pick(self, nbytes: int) -> tuple[str, str]:
        """(name, why) of the reduction for buffers of so many bytes."""
        name, why = pick(self.sizes, nbytes)
        if name == "ring" and self._order:
            return "halving", "around a ring, messages in a tree's order would grow"
        return name, why

    def allocate(self, count: int) -> np.ndarray:
        try:
            return self._reduction(4 * count).allocate(count)
        except FcaffeError as problem:
            if max(self.sizes) == 1:
                raise
            log.warning(f"Gradients are summed without shared memory, which is slower: {problem}")
            self.sizes = [1] * self.ranks  # as if each were on a host of its own; all ranks see the same problem
            return self.allocate(count)

    def add_up(self, buffer: np.ndarray) -> None:
        self._reduction(4 * buffer.shape[-1]).sum(buffer)

    def _reduction(self, nbytes: int) -> Reduction:
        """The reduction for buffers of so many bytes, created at its first use."""
        name, _ = self.pick(nbytes)
        if name not in self.picked:
            self.picked[name] = reduction = create_on_host(name, self.comm)
            self.parts.append(reduction)
            if self._order and self.ranks > 1:
                reduction.keep_to_tree(*self._order)
        return self.picked[name]


def pick(sizes: list[int], nbytes: int) -> tuple[str, str]:
    """(name, why) of the reduction for a buffer on hosts with so many ranks each."""
    ranks = sum(sizes)
    if ranks == 1:
        return "null", "there is one rank"
    if len(sizes) == 1:
        return "shared", f"all {ranks} ranks are on one host"
    if max(sizes) > 1:
        return "hierarchical", f"there are {len(sizes)} hosts with up to {max(sizes)} ranks each"
    return best_reduction(ranks, nbytes)
