"""HostMemory: memory that all ranks of one host read and write."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
from mpi4py import MPI

from fcaffe.engines.memory import address
from fcaffe.errors import FcaffeError
from fcaffe.parallel.waiting import wait_until

PAGE = 1024  # floats: each rank's row begins on a page of its own, which the kernel puts near the rank's core
LINE = 8  # int64 numbers: a cache line
FOLDER = "/dev/shm"  # where MPI libraries on Linux keep such memory


class Rows:
    """`data` has shape (ranks, count): a row for each rank of the host."""

    def __init__(self, data: np.ndarray, rank: int) -> None:
        self.data = data
        self.own = data[rank]
        self.address = address(self.own)


class HostMemory:
    """Shared windows of MPI between the ranks of `host`, and a barrier in them.

    Allocations are collective over `everybody`, the ranks of all hosts. They raise FcaffeError on all ranks if any host
    has no room.
    """

    def __init__(self, host: MPI.Intracomm, everybody: MPI.Intracomm) -> None:
        self.comm, self.everybody = host, everybody
        self.rank, self.ranks = host.rank, host.size
        self._windows: list[MPI.Win] = []
        self._rows: list[Rows] = []
        flags = self._window(8 * LINE)
        self._fence = self._windows[0]
        self._fence.Lock_all(MPI.MODE_NOCHECK)  # MPI wants an epoch around Sync
        self._arrivals = flags.cast("q")  # how often each rank has come to the barrier
        self._arrived = 0

    def allocate(self, count: int) -> Rows:
        """A row of `count` zeros for each rank. Raises FcaffeError."""
        stride = max(-(-count // PAGE), 1) * PAGE
        memory = self._window(4 * stride)
        rows = Rows(np.frombuffer(memory, np.float32).reshape(self.ranks, stride)[:, :count], self.rank)
        rows.own[:] = 0
        self._rows.append(rows)
        return rows

    def find(self, buffer: np.ndarray) -> tuple[Rows, slice] | None:
        """The rows whose row of this rank holds `buffer`, and its slice of that row; None if there are none."""
        begin = address(buffer)
        for rows in self._rows:
            start = (begin - rows.address) // 4
            if start >= 0 and start + buffer.size <= rows.own.size:
                return rows, slice(start, start + buffer.size)
        return None

    def barrier(self) -> None:
        """Wait for all ranks of this host, and see what they wrote before."""
        self._arrived += 1
        self._fence.Sync()
        self._arrivals[LINE * self.rank] = self._arrived
        for flag in range(0, LINE * self.ranks, LINE):
            if self._arrivals[flag] < self._arrived:
                wait_until(partial(self._has_arrived, flag), by_message=False)
        self._fence.Sync()

    def _has_arrived(self, flag: int) -> bool:
        return self._arrivals[flag] >= self._arrived

    def close(self) -> None:
        self._fence.Unlock_all()
        for window in self._windows:
            window.Free()

    def _window(self, size: int) -> memoryview:
        """New contiguous memory, `size` bytes for each rank."""
        total = size * self.ranks
        self._check_room(total)
        window = MPI.Win.Allocate_shared(size, 1, comm=self.comm)
        self._windows.append(window)
        start, _ = window.Shared_query(0)
        return memoryview(MPI.buffer.fromaddress(start.address, total))  # type: ignore[arg-type]

    def _check_room(self, needed: int) -> None:
        """Raise FcaffeError if there is no room: the kernel would kill a process that writes beyond it."""
        if os.path.isdir(FOLDER):
            state = os.statvfs(FOLDER)
            free = state.f_bavail * state.f_frsize
        else:
            free = needed
        if self.everybody.allreduce(free - needed, MPI.MIN) < 0:
            raise FcaffeError(
                f"the ranks of a host need {needed / 1e6:.0f} MB of shared memory, and {FOLDER} here has "
                f"{free / 1e6:.0f} MB left: give it more (docker run --shm-size, or mount -o remount,size=...) on "
                "every host, or use a reduction that does without, such as ring"
            )
