"""The watch over ranks that mpiexec, srun or another launcher has started on this host."""

from __future__ import annotations

import functools
import mmap
import os
import selectors
import time
from collections.abc import Sequence
from typing import Any

from fcaffe.parallel.network import Network
from fcaffe.parallel.processes import DAEMONS, Process, parent_of, process_name
from fcaffe.parallel.table import Slot
from fcaffe.parallel.watch import GRACE, Watch


class AdoptedRanks(Watch):
    """Each rank holds the writing end of one of the `pipes`, which are in the order of the slots.

    When a rank dies, mpiexec kills the others within a millisecond. A pipe closes at the moment of its rank's death,
    and epoll reports pipes in the order in which they close. The processes themselves disappear some milliseconds
    later, in any order.
    """

    def __init__(
        self, table: mmap.mmap, hosts: Sequence[str], timeout: float, network: Network, pipes: list[int], **more: Any
    ) -> None:
        super().__init__(table, hosts, timeout, network, **more)
        self.ranks = [Process(slot.pid) for slot in self.slots()]
        parents = {parent_of(rank.pid) for rank in self.ranks}
        self.daemons = [Process(pid) for pid in parents if process_name(pid) in DAEMONS]
        for index, pipe in enumerate(pipes):
            self.selector.register(pipe, selectors.EVENT_READ, functools.partial(self._note, index, pipe))

    def _note(self, index: int, pipe: int) -> None:
        self.selector.unregister(pipe)
        if index not in self.deaths:
            self.deaths.append(index)

    def find_deaths(self) -> bool:
        self.deaths += [i for i, rank in enumerate(self.ranks) if i not in self.deaths and rank.gone()]
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
        _wait_for(self.ranks)  # a pipe closes a moment before the kernel frees the last memory of its rank
        if self.fault:
            os.closerange(0, 3)  # a daemon ends once nobody writes to it
            _wait_for(self.daemons)
            for daemon in self.daemons:  # the daemon of a host that is cut off does not notice the end of the job
                daemon.kill()
        return 0


def _wait_for(processes: Sequence[Process]) -> None:
    """Wait until these processes have ended, for GRACE seconds at most."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and not all(process.gone() for process in processes):
        time.sleep(0.01)
