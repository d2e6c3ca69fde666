"""Hosts: groups of ranks that share memory; and HostMemory, which all ranks of a host read and write."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import cast

import numpy as np
from mpi4py import MPI

from fcaffe.engines.memory import address
from fcaffe.errors import FcaffeError
from fcaffe.parallel.reductions.wire import wait

PAGE = 1024  # floats: each rank's row begins on a page of its own, which the kernel puts near the rank's core
FOLDER = "/dev/shm"  # where MPI libraries on Linux keep such memory
POPULATE_WRITE = 23  # of madvise, from Linux 5.14 on

_libc = ctypes.CDLL(None, use_errno=True)


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


class Rows:
    """A row of floats for each rank of a host, in a shared window of MPI.

    Attributes:
        data: All rows, (ranks, count).
        own: The row of this rank.
    """

    def __init__(self, host: MPI.Intracomm, count: int) -> None:
        self._host = host
        stride = max(-(-count // PAGE), 1) * PAGE
        self._window = MPI.Win.Allocate_shared(4 * stride, 1, comm=host)
        self._window.Lock_all(MPI.MODE_NOCHECK)  # MPI wants an epoch around Sync
        start, _ = self._window.Shared_query(0)
        memory = memoryview(MPI.buffer.fromaddress(start.address, 4 * stride * host.size))  # type: ignore[arg-type]
        self.data = np.frombuffer(memory, np.float32).reshape(host.size, stride)[:, :count]
        self.own = self.data[host.rank]
        # Memory that another job has taken since the check is an error here, and a fatal signal at the first write.
        place = ctypes.c_void_p(address(self.own)), ctypes.c_size_t(4 * stride)
        self.is_there = _libc.madvise(*place, POPULATE_WRITE) == 0 or ctypes.get_errno() == errno.EINVAL
        if self.is_there:
            self.own[:] = 0

    def slice_of(self, buffer: np.ndarray) -> slice | None:
        """The slice of this rank's row that `buffer` is, or its first row; None if it lies elsewhere."""
        start = (address(buffer) - address(self.own)) // 4
        return slice(start, start + buffer.shape[-1]) if 0 <= start < self.own.size else None

    def barrier(self) -> None:
        """Wait for all ranks of the host, and see what they wrote before."""
        self._window.Sync()
        wait([self._host.Ibarrier()])
        self._window.Sync()

    def close(self) -> None:
        self._window.Unlock_all()
        self._window.Free()


class HostMemory:
    """Allocates Rows for the ranks of `host`. Collective over `everybody`, the ranks of all hosts."""

    def __init__(self, host: MPI.Intracomm, everybody: MPI.Intracomm) -> None:
        self.host, self.everybody = host, everybody
        self.rows: list[Rows] = []

    def allocate(self, count: int) -> Rows:
        """A row of `count` zeros for each rank. Raises FcaffeError on all ranks if any host has no room."""
        needed = 4 * (count + PAGE) * self.host.size
        self._check_room(needed, self._free(needed) - needed)
        rows = Rows(self.host, count)
        try:
            self._check_room(needed, 0 if rows.is_there else -1)
        except FcaffeError:
            rows.close()
            raise
        self.rows.append(rows)
        return rows

    def close(self) -> None:
        for rows in self.rows:
            rows.close()

    @staticmethod
    def _free(needed: int) -> int:
        if not os.path.isdir(FOLDER):
            return needed
        state = os.statvfs(FOLDER)
        return state.f_bavail * state.f_frsize

    def _check_room(self, needed: int, left: int) -> None:
        """Raise FcaffeError on all ranks if there is no room: the kernel would kill a process that writes beyond it."""
        if self.everybody.allreduce(left, MPI.MIN) < 0:
            raise FcaffeError(
                f"the ranks of a host need {needed / 1e6:.0f} MB of shared memory, and {FOLDER} here has "
                f"{self._free(needed) / 1e6:.0f} MB left: give it more (docker run --shm-size, or mount -o "
                "remount,size=...) on every host, or use a reduction that does without, such as ring"
            )
