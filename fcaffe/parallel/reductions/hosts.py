"""Hosts: groups of ranks that share memory."""

from __future__ import annotations

from typing import cast

from mpi4py import MPI


class Hosts:
    """The hosts of a communicator's ranks. Collective.

    Attributes:
        comm: The ranks of this rank's host.
        index: The number of this rank's host.
        sizes: The number of ranks of each host.
        ranks: The ranks of each host, in order.
    """

    def __init__(self, everybody: MPI.Intracomm) -> None:
        self.comm = cast(MPI.Intracomm, everybody.Split_type(MPI.COMM_TYPE_SHARED, everybody.rank))
        first = self.comm.bcast(everybody.rank)
        firsts = everybody.allgather(first)
        names = sorted(set(firsts))
        self.index = names.index(first)
        self.ranks = [[rank for rank, name in enumerate(firsts) if name == host] for host in names]
        self.sizes = [len(ranks) for ranks in self.ranks]

    @property
    def count(self) -> int:
        return len(self.sizes)

    def close(self) -> None:
        self.comm.Free()
