"""One run of a job's ranks: the launcher starts them, reads their records, ends them, and removes what they leave."""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel import processes
from fcaffe.parallel.blame import hang_message, names
from fcaffe.parallel.member import LAST_WORDS, Events, Member, Output
from fcaffe.parallel.records import FATAL
from fcaffe.parallel.watch import GRACE
from fcaffe.parallel.watchdog import MARGIN, STARTING, Slot

INTERRUPTED = 130  # of a rank that SIGINT ends while it loads fcaffe
ORDERLY = (0, 1, INTERRUPTED, FATAL, 141)  # a rank that ends with another code has not reported why: that is a fault
ASKED_FOR = (129, 143)  # exit codes of a training that SIGHUP or SIGTERM ended
RELAYED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
TICK = 1.0  # seconds
AFTERMATH = 8  # seconds that all have to end after the record of an end; with a cut network they may wait for ever
QUIET = 3.5  # seconds without its table after which a host counts as cut off, if ranks wait for it
SILENCE = 20.0  # seconds without its table after which a host counts as lost


@dataclass(eq=False)
class Job:
    """One run of the ranks.

    Attributes:
        command: How the ranks are started, for the log.
        start: Starts the members: the agents of the hosts or, if `by_agent` is False, mpiexec.
        name: The processes of this host have it in their environment.
        hosts: The host of each rank.
        timeout: Seconds for one operation of a rank; 0 for no limit.
        events: The records of the members.
        output: Takes their output.
        stops: Signals after which the ranks end by themselves.
        ends_early: Called once a second; when it returns True the ranks are ended, which is no fault.
        started: All ranks have found one another.
        fault: The job was ended by something that may not happen again, unlike an error.
        asked_to_end: One of the signals `stops` has come.
        iteration: The last that is known.
        advanced: When it was first known, in seconds of `time.monotonic`.
        code: The exit code.
    """

    command: str
    start: Callable[[], Sequence[Member]]
    by_agent: bool
    name: str
    hosts: Sequence[str]
    timeout: float
    events: Events
    output: Output
    stops: Collection[int]
    ends_early: Callable[[Job], bool] = lambda job: False
    members: Sequence[Member] = ()
    started: bool = False
    fault: bool = False
    ended_early: bool = False
    asked_to_end: bool = False
    iteration: int = -1
    advanced: float = 0.0
    code: int = 0
    _interrupted: int = 0  # by this signal
    _ending: dict[str, Any] | None = None  # the first record of why the job ends
    _first_end: Member | None = None  # the first that has ended otherwise than with 0
    _ending_since: float = 0.0

    def run(self) -> None:
        with self._signals():
            log.info("Starting the ranks: " + self.command)
            self.output.closed = False
            self.members = self.start()
            if self._interrupted:
                self._kill()
            self._follow()
            self._clear()
        self._conclude()

    def _follow(self) -> None:
        """Listen to the members until all have ended."""
        before = time.monotonic()
        left = set(self.members)
        while left:
            member, record = None, None
            with contextlib.suppress(queue.Empty):
                member, record = self.events.get(timeout=TICK)
            if member is not None and record is not None:
                self._take(member, record)
            elif member in left:
                left.remove(member)
                self._note_end(member)
            now = time.monotonic()
            if now - before >= TICK:
                self._look(min(now - before, 2 * TICK), left)  # this process may be stopped for a while
                before = now

    def _look(self, seconds: float, left: Collection[Member]) -> None:
        for member in left:
            if self.by_agent:
                member.order()
            member.unheard += seconds
            limit = min(SILENCE, self.timeout) if member.remote else self.timeout + 2 * MARGIN
            if self.timeout > 0 and limit < member.unheard and self._ending is None:
                self._end(member, {"code": FATAL, "fault": True, "message": self._lost(member)})
                member.kill()
        if self._ending is None and self.ends_early(self):
            self.ended_early = True
            self._end(None, {"code": 0})
        if self._ending_since:
            since = time.monotonic() - self._ending_since
            for member in left:
                if since > AFTERMATH:
                    member.kill()
                elif since > GRACE and self.by_agent:
                    member.order(kill=True)

    def _lost(self, member: Member) -> str:
        silence = f"no sign of life for {member.unheard:.0f} s"
        if not member.slots:
            return f"{member} cannot be reached: {silence}, {self._last()}"
        slots = list(member.slots.values())
        return f"{names(slots, self.hosts)} is cut off from the other hosts since {slots[0].where()}: {silence}"

    def _note_end(self, member: Member) -> None:
        if member.code == 0:
            return
        self._first_end = self._first_end or member
        if not self._ending_since:
            self._ending_since = time.monotonic()
            if member.code not in (*ORDERLY, *ASKED_FOR):
                self._end_others(member)

    def _clear(self) -> None:
        """End the processes of this host that are left, and remove the shared memory of killed ones."""
        self._left(LAST_WORDS)
        processes.kill_processes_of(self.name)
        if left := self._left(AFTERMATH):
            raise UsageError(
                f"process {left[0]} of this job cannot be killed: end it before training goes on "
                f"(ps -o stat,wchan -p {left[0]} says what it waits for)"
            )
        processes.remove_memory()

    def _left(self, seconds: float) -> list[int]:
        """The processes of this run that are still there after so many seconds at most."""
        deadline = time.monotonic() + seconds
        while (left := processes.processes_of(self.name)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def _conclude(self) -> None:
        """Set `fault` and `code` from the record of the end, or else from the exit code of a member. Log the cause of
        the end if no rank or agent has done so."""
        ending = self._ending or {}
        code = (self._first_end and self._first_end.code) or 0
        if not ending:
            number = -code if code < 0 else code if code in RELAYED and not (self.by_agent or self.started) else 0
            orderly = code in (*ORDERLY, *ASKED_FOR)
        else:
            number, code = ending.get("signal", 0), ending["code"]
            orderly = code in ORDERLY and not ending.get("fault")
        if number in RELAYED and not self._interrupted:
            self._interrupted = number
            log.warning(f"{signal.Signals(number).name} has ended a process of this job, {self._last()}")
        self.fault = not orderly and not self._interrupted
        if self._interrupted and code != 0:
            self.code = 128 + self._interrupted
        else:
            self.code = code if orderly else FATAL
        if self.fault and "message" not in ending:
            log.fatal(self._why(ending, code, number))

    def _why(self, ending: dict[str, Any], code: int, number: int) -> str:
        if self.by_agent and number and not ending:
            return f"{self._first_end} died, {self._last()}, and the ranks with it"
        who = f"rank {ending['rank']}" if "rank" in ending else str(self._first_end)
        if number:
            return f"{who} was killed by signal {number}, {self._last()}"
        member = self._first_end
        unstarted = not self.started and (not self.by_agent or (member is not None and member.remote and code == 255))
        more = ", and docs/distributed.md has a section on hosts that do not start" * unstarted
        return f"{who} ended with code {code}, {self._last()}; what it said stands above{more}"

    def _last(self) -> str:
        if not self.started:
            return "before the ranks had started"
        return "before the first iteration" if self.iteration < 0 else f"in iteration {self.iteration}"

    # --- records of the members ---------------------------------------------------------------------------------------

    def _take(self, member: Member, record: dict[str, Any]) -> None:
        member.unheard = 0.0
        if member not in self.members:
            return
        if "slots" in record:
            member.slots |= {slot.rank: slot for slot in (Slot(*words) for words in record["slots"])}
            slots = [slot for other in self.members for slot in other.slots.values()]
            if len(slots) == len(self.hosts) and all(slot.state != STARTING for slot in slots):
                self._advance(max(slot.iteration for slot in slots))
        elif "put" in record:
            member.put += record["put"]
            member.in_barrier = bool(record.get("barrier"))
            if all(other.in_barrier for other in self.members):
                self._end_barrier()
        elif "iteration" in record:
            self._advance(record["iteration"])
        elif "code" in record and self._ending is None:
            self._end(member, record)

    def _advance(self, iteration: int) -> None:
        self.started = True
        if iteration > self.iteration:
            self.iteration, self.advanced = iteration, time.monotonic()

    def _end_barrier(self) -> None:
        values = [pair for member in self.members for pair in member.put]
        for member in self.members:
            member.put, member.in_barrier = [], False
            member.order(values=values)

    def _end(self, member: Member | None, record: dict[str, Any]) -> None:
        """Take this record of the end, and end the ranks of all other hosts; this one's do so by themselves."""
        self.output.closed = True
        self._ending, self._ending_since = record, time.monotonic()
        if record.get("overdue") is not None and member is not None and len(self.hosts) > 1:
            others = [other for other in self.members if other is not member]
            record["message"] = hang_message(
                member.slots[record["overdue"]],
                list(member.slots.values()),
                [slot for other in others for slot in other.slots.values()],
                [slot for other in others if other.unheard > QUIET for slot in other.slots.values()],
                self.hosts,
                self.timeout,
            )
        if "message" in record and not record.get("logged"):
            log.fatal(record["message"], record.get("source"))
        self._end_others(member)

    def _end_others(self, member: Member | None) -> None:
        for other in self.members:
            if other is not member and self.by_agent:
                other.order(kill=True)

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._relay) for number in RELAYED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _relay(self, number: int, _: FrameType | None) -> None:
        """Send a signal to rank 0 through the agent of its host, to whose standard input mpiexec passes orders.

        One rank is enough: the training loops agree on what to do. Before the ranks have started, and on a second
        SIGTERM, end all at once.
        """
        again = self._interrupted == number
        self.asked_to_end |= number in self.stops
        if number == signal.SIGTERM or not self.started:
            self._interrupted = number
        if again or not self.started:
            self._kill()
        else:
            self.members[0].order(signal=number)

    def _kill(self) -> None:
        for member in self.members:
            member.kill()
