"""One rank of the checks of sums in tree order: `python -m mpi4py tree_order_ranks.py CHECK`."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel import waiting
from fcaffe.parallel.reductions import create_reduction
from fcaffe.parallel.reductions.hierarchical import BLOCK
from fcaffe.parallel.reductions.hosts import Hosts
from tests.parallel.refusals import refused

LENGTHS = [3, 1000, BLOCK + 1]
EVERYWHERE = ["tree", "doubling", "halving", "ring", "server", "sharded-server", "hierarchical", "auto"]


def gradients(rank: int, length: int) -> np.ndarray:
    """Of many magnitudes, so that another order gives other bits."""
    random = np.random.default_rng((rank, length))
    return (random.standard_normal(length) * 10.0 ** random.integers(-4, 4, length)).astype(np.float32)


def tree(ranks: int, length: int) -> np.ndarray:
    rows = np.array([gradients(rank, length) for rank in range(ranks)])
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return rows[0]


def check(comm: MPI.Intracomm, names: list[str]) -> None:
    for name in names:
        reduction = create_reduction(name, comm)
        reduction.keep_to_tree()
        own = reduction.allocate(max(LENGTHS))
        for length in LENGTHS:
            expected = tree(comm.size, length).tobytes()
            for buffer in (own[:length], np.empty(length, np.float32)):
                buffer[:] = gradients(comm.rank, length)
                reduction.sum(buffer)
                assert buffer.tobytes() == expected, f"{name}, {comm.size} ranks, {length} floats"
        reduction.close()


def one_host() -> None:
    for size in (1, 2, 4, 8):
        comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // size)
        check(comm, [*EVERYWHERE, "shared"])
    for name in ("mpi", "null"):
        with refused(UsageError, f"{name} does not add up in the order of a tree; these do: auto, .*tree"):
            create_reduction(name, MPI.COMM_WORLD).keep_to_tree()


def several_hosts() -> None:
    """Two that MPI takes one for: with the ranks of each one after the other, and taking turns."""
    world = MPI.COMM_WORLD
    hosts = Hosts(world)
    if hosts.count == 1:
        return
    in_order = world.Split(0, hosts.index)
    check(in_order, [*EVERYWHERE, "hierarchical:ring", "hierarchical:tree"])
    with refused(UsageError, "reduction mpi does not add up"):
        create_reduction("hierarchical:mpi", in_order).keep_to_tree()
    turns = world.Split(0, hosts.comm.rank)
    check(turns, ["auto", "ring"])
    with refused(UsageError, "hierarchical adds up in the order of a tree only where each host"):
        create_reduction("hierarchical", turns).keep_to_tree()


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
{"one-host": one_host, "several-hosts": several_hosts}[sys.argv[1]]()
