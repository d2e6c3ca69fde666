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
        are_subtrees: Whether each host has the same power of two of ranks, with consecutive numbers.
    """

    def __init__(self, everybody: MPI.Intracomm) -> None:
        self.comm = cast(MPI.Intracomm, everybody.Split_type(MPI.COMM_TYPE_SHARED, everybody.rank))
        first = self.comm.bcast(everybody.rank)
        firsts = everybody.allgather(first)
        names = sorted(set(firsts))
        self.index = names.index(first)
        self.sizes = [firsts.count(name) for name in names]
        size = self.sizes[0]
        self.are_subtrees = size & (size - 1) == 0 and firsts == [rank // size * size for rank in range(len(firsts))]

    @property
    def count(self) -> int:
        return len(self.sizes)

    def close(self) -> None:
        self.comm.Free()
