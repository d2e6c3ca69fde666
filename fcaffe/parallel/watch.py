"""The watch that an agent keeps over the ranks of its host: finds the dead and the hung, names them, ends the rest.

A rank lives as long as its count of beats in the shared table changes. For how long it has not is measured by the
agent's own ticks, so a job that a batch system suspends and resumes has not hung. Time for which other processes had
the cores does not count, so neither has a rank on a loaded machine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import time
from collections.abc import Callable, Sequence

from fcaffe.parallel import processes, records
from fcaffe.parallel.blame import hang_message, names, with_stopped
from fcaffe.parallel.network import Network
from fcaffe.parallel.table import FAILED, LEAVING, STARTING, WORKING, Slot, read_slots

TICK = 0.25  # seconds
REPORT = 1.0  # seconds between two reports to the other agents and to the launcher
GRACE = 3.0  # seconds that processes have to end after others of their job
LEAST = 0.1  # the share of the time that always counts: a rank that hangs while it polls wants cores too
MARGIN = 30.0  # seconds beyond the time-out for a rank to load Python and fcaffe


class Watch:
    """Base of the two watches: over ranks that the agent has started (`local_ranks.py`), and over ranks that MPI's
    launcher has started (`adopted.py`).

    `hosts` has the host of each rank of the job; `timeout` is in seconds, 0 for none. With `reports` the agent tells
    fcaffe's launcher how far training is, and passes its signals on to rank 0; `launched`: there is such a launcher.
    """

    def __init__(
        self,
        table: mmap.mmap,
        hosts: Sequence[str],
        timeout: float,
        network: Network,
        reports: bool = False,
        launched: bool = False,
    ) -> None:
        self.table = table
        self.hosts = hosts
        self.timeout = timeout
        self.network = network
        self.reports = reports
        self.launched = launched
        self.selector = selectors.DefaultSelector()
        if network.socket is not None:
            self.selector.register(network.socket, selectors.EVENT_READ, network.receive)
        if reports:
            self.selector.register(0, selectors.EVENT_READ, self._hear_launcher)
        count = len(read_slots(table))
        self.pids = [0] * count
        self.deaths: list[int] = []  # indices of slots, in the order in which the ranks ended
        self.quiet = [0.0] * count  # seconds without a beat
        self.beats = [-1] * count
        self.waits: dict[int, float] = {}  # of ranks for cores, at the last look
        self.launcher_gone = False  # its end of our standard input was closed
        self.fault = self.failed = False
        self.next_report = 0.0

    # --- what the two watches do differently --------------------------------------------------------------------------

    def find_deaths(self) -> bool:
        """Note ranks that have ended since the last call; whether none is left."""
        raise NotImplementedError

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        """End the job if something has died or hangs."""
        raise NotImplementedError

    def kill_ranks(self) -> None:
        raise NotImplementedError

    def finish(self) -> int:
        """Clean up after the last rank; returns the agent's exit code."""
        raise NotImplementedError

    # --- the loop -----------------------------------------------------------------------------------------------------

    def watch(self) -> int:
        """Return when all ranks have gone."""
        before = time.monotonic()
        while True:
            self._serve(TICK)
            known = len(self.deaths)
            done = self.find_deaths()
            if len(self.deaths) > known:
                self._serve(0)  # the last words of the dead
            now = time.monotonic()
            if now - before >= TICK or len(self.deaths) > known or done:
                self.look(min(now - before, 4 * TICK))
                before = now
            if done:
                return self.finish()

    def _serve(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            callback: Callable[[], None] = key.data
            callback()

    def once(self, handle: int, callback: Callable[[], None]) -> None:
        """Call back when a handle becomes readable or is closed at its other end."""

        def call() -> None:
            self.selector.unregister(handle)
            os.close(handle)
            callback()

        self.selector.register(handle, selectors.EVENT_READ, call)

    def when_ended(self, pid: int, callback: Callable[[], None]) -> None:
        """Call back when a process ends, if the kernel can tell that; `find_deaths` looks at each tick."""
        with contextlib.suppress(OSError, AttributeError):
            self.once(os.pidfd_open(pid), callback)

    def slots(self) -> list[Slot]:
        found = read_slots(self.table)
        return [slot if slot.pid else slot._replace(pid=pid) for slot, pid in zip(found, self.pids, strict=True)]

    def look(self, seconds: float) -> None:
        """Find the dead and the hung; `seconds` have passed since the last look."""
        self.network.receive()
        slots = self.slots()
        seconds = max(seconds - self.starved(slots), LEAST * seconds)
        overdue = [slot for index, slot in enumerate(slots) if self.overdue(index, slot, seconds)]
        failed = any(slot.state == FAILED for slot in slots)
        if failed and not self.failed:
            self.network.fault = (0.0, self.network.number)  # before all others: what a rank says itself says more
            self.network.send(with_stopped(slots))
        self.failed = failed
        if not self.fault:
            self.judge(slots, overdue)
        heard = self.network.fault_heard
        if not self.fault and heard is not None and time.monotonic() > heard + GRACE:
            self.fault = True  # which that agent has told; not every launcher ends the ranks of other hosts
            self.kill_ranks()
        if time.monotonic() > self.next_report:
            self.next_report = time.monotonic() + REPORT
            self.network.send(with_stopped(slots))
            if self.reports and all(slot.state != STARTING for slot in slots):
                records.send({"iteration": max(slot.iteration for slot in slots)})

    def out_of_order(self, slots: list[Slot]) -> list[int]:
        """The slots of ranks that ended without having left the job, in the order of their ends."""
        return [index for index in self.deaths if slots[index].state != LEAVING]

    def starved(self, slots: list[Slot]) -> float:
        """For how many seconds since the last look one of those ranks here on which the others wait had no core: of
        those that work, or, if none does, of all."""
        late = [slot.pid for slot in slots if slot.state in (STARTING, WORKING)] or [slot.pid for slot in slots]
        before, self.waits = self.waits, {pid: processes.waited_for_core(pid) for pid in late}
        return max(now - before.get(pid, now) for pid, now in self.waits.items())

    def overdue(self, index: int, slot: Slot, seconds: float) -> bool:
        if slot.beats != self.beats[index]:
            self.beats[index], self.quiet[index] = slot.beats, 0.0
        else:
            self.quiet[index] += seconds
        limit = self.timeout + MARGIN * (slot.beats == 0)
        return self.timeout > 0 and limit < self.quiet[index] and index not in self.deaths

    # --- the end of a job ---------------------------------------------------------------------------------------------

    def end_hung(self, first: Slot, slots: list[Slot]) -> None:
        self.end(hang_message(first, slots, self.network, self.hosts, self.timeout))

    def end_dead(self, slot: Slot, how: str = "killed, or crashed outside of Python") -> None:
        self.end(f"{names([slot], self.hosts)} died in {slot.where()}: {how}")

    def end(self, message: str) -> None:
        """Say why, and end all ranks of this host; mpiexec, if it can still be reached, ends those of the others."""
        self.fault = True
        if not self.network.knows_of_fault(self.slots()):  # of which this one is a consequence
            records.tell_fault(message, self.launched)
        self.kill_ranks()

    # --- the launcher -------------------------------------------------------------------------------------------------

    def _hear_launcher(self) -> None:
        """Pass signals, whose numbers the launcher writes to our standard input, on to rank 0."""
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(0)
            self.launcher_gone = True
        for word in data.split():
            if word.isdigit() and 0 not in self.deaths:
                processes.Process(self.slots()[0].pid).kill(int(word))
