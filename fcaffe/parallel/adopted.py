"""The watch over ranks that mpiexec, srun or another launcher has started on this host."""

from __future__ import annotations

import functools
import mmap
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from fcaffe.parallel.network import Network
from fcaffe.parallel.processes import SIGNAL_OF_STATUS, Process, Starter, starters_above
from fcaffe.parallel.table import LEAVING, Slot
from fcaffe.parallel.watch import GRACE, Watch

TURN = 2.0  # seconds that an agent on the launcher's host has to say that the launcher has died


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
        chains = [starters_above(rank.pid) for rank in self.ranks]
        self.starters = [Starter(pid) for pid in dict.fromkeys(pid for chain in chains for pid in chain)]
        self.dead_starter: Starter | None = None
        for index, pipe in enumerate(pipes):
            self.once(pipe, functools.partial(self.note_death_of, index))
        for starter in self.starters:
            self.when_ended(starter.pid, functools.partial(self.note_end_of, starter))

    def find_deaths(self) -> bool:
        for starter in self.starters:
            if starter.gone():
                self.note_end_of(starter)
        self.deaths += [i for i, rank in enumerate(self.ranks) if i not in self.deaths and rank.gone()]
        return len(self.deaths) == len(self.ranks)

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        dead = self.out_of_order(slots)
        starter = self.dead_starter
        if self.failed and starter is not None and not starter.is_launcher:
            starter = None  # mpiexec ends once a rank has failed; the launcher stays
        if starter is not None and (dead or len(self.deaths) < len(slots)):
            after = self.starters[self.starters.index(starter) + starter.is_daemon :]  # a daemon's goes the ranks' way
            stderr = next((one.stderr for one in after if one.stderr is not None), None)
            self.end_orphans(starter, slots, stderr, self.launched and not starter.is_launcher)
        elif not self.failed and dead:
            self.end_dead(slots[dead[0]])
        elif self.launcher_gone is not None and time.monotonic() > self.launcher_gone + TURN and not self.deaths:
            self.end("the process that started the ranks has died; so does the job", launched=False)
        elif not self.failed and overdue:
            self.end_hung(overdue[0], slots)

    def note_end_of(self, starter: Starter) -> None:
        """The first starter to end is to blame for all, unless a rank had died before and it ends for that.

        One that is killed closes its connections before it is seen to have ended; so one further down, which was not
        killed but ends for that, may seem to be the first.
        """
        if self.dead_starter is not None or self.out_of_order(self.slots()):
            return
        self.dead_starter = starter
        if not (starter.exit_status() or 0) & SIGNAL_OF_STATUS:
            self.dead_starter = self.killed_from(self.starters.index(starter) + 1) or starter
        elif self.starters[-1].is_launcher and self.starters[-1].is_ending():
            self.dead_starter = self.starters[-1]  # with which the kernel ends what it has started

    def note_death_of(self, index: int) -> None:
        """A rank dies with what has started it, and may be seen to have ended first, as a process with several threads
        takes its time."""
        slots = self.slots()
        if self.dead_starter is None and all(slots[other].state == LEAVING for other in self.deaths):
            self.dead_starter = self.killed_from(0)
        if index not in self.deaths:
            self.deaths.append(index)

    def killed_from(self, index: int) -> Starter | None:
        """The last of the starters from that one on that is ending now, other than by itself."""
        found = None
        for starter in self.starters[index:]:
            if starter.is_ending():
                status = starter.exit_status()
                found = starter if status is None or status & SIGNAL_OF_STATUS else found
        return found

    def kill_ranks(self) -> None:
        for rank in self.ranks:
            rank.kill()

    def finish(self) -> int:
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and not all(rank.gone() for rank in self.ranks):
            time.sleep(0.005)  # their pipes have closed, and the last of their memory goes a moment later
        if self.fault:
            os.closerange(0, 3)  # for which the daemon waits
            self.end_daemons()
        return 0

    def end_daemons(self) -> None:
        """MPI's process on a host that is cut off does not know that the job is over, and would stay for good."""
        daemons = [starter for starter in self.starters if starter.is_daemon]
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and not all(daemon.gone() for daemon in daemons):
                time.sleep(0.05)
            for daemon in daemons:
                daemon.kill(number)
