"""The watch of an agent over the ranks of its host: finds dead and hung ranks, names them, ends the others.

A rank lives as long as its count of beats in the shared table changes. The agent measures by its own ticks for how long
it has not changed. So a job that a batch system suspends and resumes does not count as hung. Time in which other
processes had the cores is subtracted. So a rank on a loaded machine does not count as hung either.
"""

from __future__ import annotations

import mmap
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from fcaffe.parallel import processes, records
from fcaffe.parallel.blame import hang_message, names, with_stopped
from fcaffe.parallel.records import FATAL, Orders
from fcaffe.parallel.watchdog import FAILED, LEAVING, MARGIN, STARTING, WORKING, Slot, read_slots

TICK = 0.25  # seconds
REPORT = 1.0  # seconds between two reports to the launcher
GRACE = 3.0  # seconds that processes have to end after others of their job
LEAST = 0.1  # the share of the time that always counts: a rank that hangs in a loop waits for cores, too
TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that ask for the end


class Watch:
    """Base of the two watches: over the ranks of a host that the agent has started (`local_ranks.py`), and over one
    rank that MPI's launcher has started (`forked_rank.py`).

    `children` are the processes of the ranks, each a subprocess.Popen or the like. `hosts` has the host of each rank of
    the job; `timeout` is in seconds, 0 for none. Orders of fcaffe's launcher come from `orders`, if there are any.
    """

    def __init__(
        self, table: mmap.mmap, children: list[Any], hosts: Sequence[str], timeout: float, orders: Orders | None
    ) -> None:
        self.table = table
        self.children = children
        self.hosts = hosts
        self.timeout = timeout
        self.orders = orders
        self.selector = selectors.DefaultSelector()
        if orders is not None:
            self.selector.register(orders.source, selectors.EVENT_READ, self._hear_launcher)
        count = len(read_slots(table))
        self.deaths: list[int] = []  # indices of slots, in the order in which the ranks ended
        self.quiet = [0.0] * count  # seconds without a beat
        self.beats = [-1] * count
        self.waits: dict[int, float] = {}  # seconds for which ranks had waited for cores at the last look
        self.unheard = 0.0  # seconds without an order
        self.launcher_gone = False
        self.fault = self.failed = False
        self.code = 0  # of the first rank that ended with one; 128 and more for a signal
        self.deadline: float | None = None  # when ranks that still live are killed
        self.next_report = 0.0

    # --- overridden by subclasses ------------------------------------------------------------------------------------

    def out_of_order(self, index: int, slot: Slot, living: bool) -> bool:
        """Whether a rank that has ended is a fault; `living`: others have not ended."""
        return slot.state not in (LEAVING, FAILED) and bool(self.children[index].poll())

    def orphaned(self, slots: list[Slot]) -> None:
        """The launcher has died."""
        self.fault = True
        self.kill_ranks()

    def share(self, slots: list[Slot]) -> None:
        """Send the state of this host's ranks to the launcher."""
        records.send_items("slots", slots)

    def tell(self, record: dict[str, Any]) -> None:
        """Send the cause of the job's end to the launcher."""
        records.send(record)

    def hung(self, first: Slot, slots: list[Slot]) -> str:
        """The message about a hang, from what is known on this host; `first` is a rank that is overdue."""
        return hang_message(first, with_stopped(slots), [], [], self.hosts, self.timeout)

    def finish(self) -> int:
        """Clean up after the last rank; returns the agent's exit code."""
        return self.code

    # --- the loop -----------------------------------------------------------------------------------------------------

    def watch(self) -> int:
        """Return when all ranks have gone."""
        before = time.monotonic()
        while True:
            self._serve(TICK)
            known = len(self.deaths)
            done = self.find_deaths()
            if len(self.deaths) > known:
                self._serve(0)  # the last messages of the dead
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

    def slots(self) -> list[Slot]:
        pairs = zip(read_slots(self.table), self.children, strict=True)
        return [slot if slot.pid else slot._replace(pid=child.pid) for slot, child in pairs]

    def find_deaths(self) -> bool:
        """Note ranks that have ended since the last call; whether none is left."""
        for index, child in enumerate(self.children):
            code = child.poll()
            if code is not None and index not in self.deaths:
                self.deaths.append(index)
                self.code = self.code or (128 - code if code < 0 else code)
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.kill_ranks()
        return len(self.deaths) == len(self.children)

    def look(self, seconds: float) -> None:
        """Find the dead and the hung; `seconds` have passed since the last look."""
        self.unheard += seconds
        slots = self.slots()
        seconds = max(seconds - self.starved(slots), LEAST * seconds)
        overdue = [slot for index, slot in enumerate(slots) if self.overdue(index, slot, seconds)]
        failed = any(slot.state == FAILED for slot in slots)
        if failed and not self.failed:
            self.share(with_stopped(slots))
        self.failed = failed
        if not self.fault:
            self.judge(slots, overdue)
        if time.monotonic() > self.next_report:
            self.next_report = time.monotonic() + REPORT
            self.share(with_stopped(slots))

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        """End the job if something has died or hangs."""
        living = len(self.deaths) < len(slots)
        gone = [index for index in self.deaths if self.out_of_order(index, slots[index], living)]
        if self.launcher_gone and living:
            self.orphaned(slots)
        elif gone and not self.failed:
            self._end_for(gone[0], slots[gone[0]])
        elif overdue and not self.failed:
            self.share(with_stopped(slots))
            self.end(self.hung(overdue[0], slots), overdue[0].rank)
        elif self.failed and self.deaths and self.deadline is None:
            self.deadline = time.monotonic() + GRACE  # it should have aborted the others

    def starved(self, slots: list[Slot]) -> float:
        """The longest time, in seconds, for which a rank has waited for a core since the last look. Ranks that work
        count, or, if none does, all."""
        late = [slot.pid for slot in slots if slot.state in (STARTING, WORKING)] or [slot.pid for slot in slots]
        before, self.waits = self.waits, {pid: processes.waited_for_core(pid) for pid in late}
        return max(now - before.get(pid, now) for pid, now in self.waits.items())

    def overdue(self, index: int, slot: Slot, seconds: float) -> bool:
        if slot.beats != self.beats[index]:
            self.beats[index], self.quiet[index] = slot.beats, 0.0
        else:
            self.quiet[index] += seconds
        limit = self.timeout + MARGIN * (slot.state == STARTING)
        return self.timeout > 0 and limit < self.quiet[index] and index not in self.deaths

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_for(self, index: int, slot: Slot) -> None:
        """End the others after a rank has ended. Report why it ended, unless it may have done so itself."""
        code = self.children[index].poll()
        if slot.state != STARTING and -code not in TO_END:
            how = f"it ended with exit code {code}" if code >= 0 else "killed, or crashed outside of Python"
            self.end(f"{names([slot], self.hosts)} died in {slot.where()}: {how}")
            return
        self.fault, self.deadline = True, time.monotonic() + TICK
        self.code = self.code or 1
        self.tell({"rank": slot.rank, "code": self.code, "signal": max(0, -code)})

    def end(self, message: str, overdue: int | None = None) -> None:
        """Report why the job ends, and end the ranks of this host. The launcher ends those of other hosts. `overdue`
        is a rank that hangs. With several hosts the launcher finds the rank for which it waits."""
        self.fault = True
        self.tell({"code": FATAL, "fault": True, "message": message, "overdue": overdue})
        self.kill_ranks()

    def kill_ranks(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()

    # --- the launcher -------------------------------------------------------------------------------------------------

    def _hear_launcher(self) -> None:
        """Read orders. Every order is a sign of life, even an empty one."""
        assert self.orders is not None
        orders = self.orders.read()
        self.unheard = 0.0
        if orders is None:
            self.selector.unregister(self.orders.source)
            self.launcher_gone = True
        self.obey(orders or [])

    def obey(self, orders: Sequence[dict[str, Any]]) -> None:
        """Carry out orders of the launcher: pass a signal on to rank 0, or end the ranks."""
        for order in orders:
            if "signal" in order and 0 not in self.deaths:
                self.children[0].send_signal(order["signal"])
            if "kill" in order:
                self.fault = True
                self.kill_ranks()
