"""One rank of the checks of sums in tree order: `python -m mpi4py tree_order_ranks.py CHECK`."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel import waiting
from fcaffe.parallel.reductions import create_reduction
from fcaffe.parallel.reductions.hierarchical import BLOCK
from fcaffe.parallel.reductions.host_memory import Hosts
from fcaffe.share import split_batch
from fcaffe.tree_order import Node, Tree
from tests.parallel.refusals import refused

LENGTHS = [1, 1000, BLOCK + 1]
EVERYWHERE = ["tree", "doubling", "halving", "ring", "server", "hierarchical", "auto"]


def gradients(leaf: int, length: int) -> np.ndarray:
    """Of many magnitudes, so that another order gives other bits."""
    random = np.random.default_rng((leaf, length))
    return (random.standard_normal(length) * 10.0 ** random.integers(-4, 4, length)).astype(np.float32)


def pairwise(leaves: int, length: int) -> np.ndarray:
    """Neighbours are added, and neighbouring sums, and so on; one that is left over waits for the next round."""
    rows = [gradients(leaf, length) for leaf in range(leaves)]
    while len(rows) > 1:
        rows = [rows[i] + rows[i + 1] if i + 1 < len(rows) else rows[i] for i in range(0, len(rows), 2)]
    return rows[0]


def sum_of(tree: Tree, node: Node, length: int) -> np.ndarray:
    first, end = node
    sums = {}
    for leaf in range(first, end):
        tree.join(sums, {(leaf, leaf + 1): gradients(leaf, length)})
    return sums[node]


def check(comm: MPI.Intracomm, names: list[str], leaves: int) -> None:
    """Each rank has consecutive leaves, as with --reproducible."""
    tree = Tree(leaves)
    shares = [split_batch(leaves, rank, comm.size) for rank in range(comm.size)]
    nodes = [tree.cover(share.first, share.first + share.count) for share in shares]
    rows = max(map(len, nodes))
    for name in names:
        reduction = create_reduction(name, comm)
        reduction.keep_to_tree(tree, nodes)
        own = reduction.allocate(rows * max(LENGTHS)).reshape(rows, max(LENGTHS))
        for length in LENGTHS:
            expected = pairwise(leaves, length).tobytes()
            for buffer in (own[:, :length], np.empty((rows, length), np.float32)):
                for row, node in zip(buffer, nodes[comm.rank], strict=False):
                    row[:] = sum_of(tree, node, length)
                reduction.sum(buffer)
                assert buffer[0].tobytes() == expected, f"{name}, {leaves} leaves, {comm.size} ranks, {length} floats"
        reduction.close()


def one_host() -> None:
    world = MPI.COMM_WORLD
    for size in (2, 3, 5, 6):
        comm = world.Split(world.rank < size, world.rank)
        if world.rank < size:
            for leaves in (size, 2 * size + 1):
                check(comm, [*EVERYWHERE, "shared"], leaves)
    for name in ("mpi", "null"):
        with refused(UsageError, f"{name} does not add up in the order of a tree; these do: auto, .*tree"):
            create_reduction(name, world).keep_to_tree(Tree(2), [])


def several_hosts() -> None:
    """Two or more that MPI takes one for: with the ranks of each one after the other, and taking turns."""
    world = MPI.COMM_WORLD
    hosts = Hosts(world)
    if hosts.count == 1:
        return
    in_order = world.Split(0, hosts.index)
    turns = world.Split(0, hosts.comm.rank)
    for leaves in (world.size, 12):
        check(in_order, [*EVERYWHERE, "hierarchical:ring", "hierarchical:tree"], leaves)
        check(turns, ["auto", "ring", "hierarchical:halving"], leaves)
    alone = [[(rank, rank + 1)] for rank in range(world.size)]
    reduction = create_reduction("hierarchical:mpi", in_order)
    if hosts.comm.rank < min(hosts.sizes):  # others have nothing to add up between hosts
        with refused(UsageError, "reduction mpi does not add up"):
            reduction.keep_to_tree(Tree(world.size), alone)


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
{"one-host": one_host, "several-hosts": several_hosts}[sys.argv[1]]()
