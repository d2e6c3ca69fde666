"""The watch over ranks that mpiexec, srun or another launcher has started on this host."""

from __future__ import annotations

import functools
import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

from fcaffe.parallel.network import Network
from fcaffe.parallel.processes import DAEMONS, Process, parent_of, process_name
from fcaffe.parallel.table import Slot
from fcaffe.parallel.watch import GRACE, Watch


class AdoptedRanks(Watch):
    """`pipes` are the other ends of those that the ranks hold while they live, in the order of their slots.

    mpiexec sees the connection of the first dead rank close, and kills the others within a millisecond. The pipes close
    at the same moment, and epoll reports them in that order. The end of the process itself comes later by some
    milliseconds, in any order.
    """

    def __init__(
        self, table: mmap.mmap, hosts: Sequence[str], timeout: float, network: Network, pipes: list[int], **more: Any
    ) -> None:
        super().__init__(table, hosts, timeout, network, **more)
        self.ranks = [Process(slot.pid) for slot in self.slots()]
        parents = {parent_of(rank.pid) for rank in self.ranks}
        self.daemons = [Process(pid) for pid in parents if process_name(pid) in DAEMONS]
        for index, pipe in enumerate(pipes):
            self.once(pipe, functools.partial(self._note, index))

    def _note(self, index: int) -> None:
        if index not in self.deaths:
            self.deaths.append(index)

    def find_deaths(self) -> bool:
        for index, rank in enumerate(self.ranks):
            if rank.gone():
                self._note(index)
        return len(self.deaths) == len(self.ranks)

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        if self.failed:
            return
        if dead := self.out_of_order(slots):
            self.end_dead(slots[dead[0]])
        elif overdue:
            self.end_hung(overdue[0], slots)

    def kill_ranks(self) -> None:
        for rank in self.ranks:
            rank.kill()

    def finish(self) -> int:
        _wait_for(self.ranks)  # their pipes have closed, and the last of their memory goes a moment later
        if self.fault:
            os.closerange(0, 3)  # for which the daemon waits
            _wait_for(self.daemons)
            for daemon in self.daemons:  # on a host that is cut off it does not know that the job is over
                daemon.kill()
        return 0


def _wait_for(processes: Sequence[Process]) -> None:
    """Until these have ended, but not for long."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and not all(process.gone() for process in processes):
        time.sleep(0.01)
