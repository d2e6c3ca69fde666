"""One run of a job's ranks by agents: the launcher sends them orders, handles their messages, and ends them.

| state    | begins when                | ends when                                      |
|----------|----------------------------|------------------------------------------------|
| loading  | the ranks are ordered      | all ranks train; a fault: failed               |
| training | all ranks train            | a rank has ended its training; a fault: failed |
| done     | a rank is done             | all agents have gone                           |
| failed   | the cause of the end is known | all agents have gone                        |

A fault is the death of a rank or an agent, a link that is cut (`carrier.py`), or ranks that hang (`ranks.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from signal import SIGTERM, Signals

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.jobs import processes
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Hosts, bare
from fcaffe.jobs.launcher import MODULE, Launcher
from fcaffe.jobs.member import GONE, Member
from fcaffe.jobs.pmi import process_mapping
from fcaffe.jobs.ranks import Slot, hang_message
from fcaffe.jobs.silences import SILENCE
from fcaffe.jobs.started import FATAL
from fcaffe.parallel.watchdog import DONE, LOADING, TRAINING, Doing

FAILED = "failed"


@dataclass(frozen=True)
class Cause:
    """Why a job ends, as an agent tells it."""

    code: int = FATAL
    fault: bool = False  # it may not happen again, unlike an error
    message: str = ""
    signal: int = 0  # by which a process has ended, since it was asked to
    logged: bool = False  # by a rank
    source: str | None = None  # file and line of the error
    lost: bool = False  # a rank has lost its peer, or MPI has ended it: most often the consequence of another cause


class Run:
    """A run of so many ranks on each host by the agents `members`, numbered in this order, from the state `path`.

    After the `last` run a fault ends the job, and its message says how to go on. `ends_early` is called once a second;
    when it returns True the ranks are ended, which is no fault.

    Attributes:
        trained: All ranks have trained.
        fault: The run was ended by something that may not happen again.
        asked_to_end: A signal has come after which the ranks end by themselves.
        iteration: The highest that a rank has reported.
    """

    def __init__(
        self,
        launcher: Launcher,
        hosts: Hosts,
        members: Sequence[Member],
        path: str | None = None,
        last: bool = False,
        ends_early: Callable[[Run], bool] = lambda run: False,
    ) -> None:
        self.launcher, self.members, self.last, self.ends_early = launcher, members, last, ends_early
        self.hosts = [bare(host) for host, count in hosts for _ in range(count)]  # of each rank
        self.trained = self.fault = self.ended_early = self.asked_to_end = False
        self.iteration, self.code = -1, FATAL
        self.state = LOADING
        self._signal = 0  # which ends the run
        self._lost: tuple[float, Cause] | None = None  # when it was told
        self._asked = time.monotonic()  # when `ends_early` was called last
        where = f" on {','.join(f'{name}:{count}' for name, count in hosts)}" if launcher.plan.hosts else ""
        log.info(f"Starting the ranks: {len(self.hosts)}{where}")
        self._order([count for _, count in hosts], path)

    def _order(self, counts: Sequence[int], path: str | None) -> None:
        self.launcher.output.closed = False
        for index, member in enumerate(self.members):
            member.listener, member.quiet = self._hear, False
            member.link.tell(
                module=MODULE,
                name=self.members[0].name,
                order=self.launcher.order(path),
                hosts=self.hosts,
                first=sum(counts[:index]),
                count=counts[index],
                mapping=process_mapping(counts),
                timeout=self.launcher.plan.timeout,
            )

    def follow(self) -> Run:
        """Return when all agents have gone. Raises UsageError if a process of this host cannot be killed."""
        while live := [member for member in self.members if member.state != GONE]:
            self.launcher.turn()
            while self.launcher.signals:
                self._relay(self.launcher.signals.popleft())
            if self.state in (LOADING, TRAINING):
                self._look()
            for member in live:
                if self.state == FAILED and member.unheard > SILENCE:
                    member.kill()
        self._clean_up()
        return self

    def _clean_up(self) -> None:
        """End what is left of the run on this host."""
        if left := processes.end_processes([member.name for member in self.members], self.launcher.turn):
            raise UsageError(
                f"process {left[0]} of this job cannot be killed: end it before training goes on "
                f"(ps -o stat,wchan -p {left[0]} says what it waits for)"
            )
        processes.remove_memory(processes.PATIENCE)

    def _look(self) -> None:
        for member in self.members:
            if member.is_lost:
                self._end(Cause(fault=True, message=member.why_lost(self.hosts, self._when())))
                member.kill()
                return
        if hang := hang_message(self._slots(), self.hosts, self.launcher.plan.timeout):
            self._end(Cause(fault=True, message=hang))
        elif self._lost and time.monotonic() - self._lost[0] > SILENCE:
            self._end(self._lost[1])
        elif time.monotonic() - self._asked >= 1:
            self._asked = time.monotonic()
            if self.ends_early(self):
                self.ended_early = True
                self._end(Cause(code=0))

    def _slots(self) -> list[Slot]:
        return [slot for member in self.members for slot in member.slots]

    def _when(self) -> str:
        if not self.trained:
            return "before the training"
        return "before the first iteration" if self.iteration < 0 else f"in iteration {self.iteration}"

    def _hear(self, member: Member, message: Message) -> None:
        if "ranks" in message:
            member.slots = [Slot(rank, pid, Doing(*doing), *rest) for rank, pid, doing, *rest in message["ranks"]]
            self._note_progress()
        elif "put" in message:
            self._take_values(member, message["put"])
        elif "warning" in message:
            log.warning(message["warning"])
        elif self.state not in (LOADING, TRAINING):
            return
        elif "cause" in message:
            cause = Cause(**message["cause"])
            if cause.lost:
                self._lost = self._lost or (time.monotonic(), cause)
            else:
                self._end(cause)
        elif "ended" in message:
            self.trained, self.code, self.state = True, message["ended"], DONE

    def _note_progress(self) -> None:
        slots = self._slots()
        if len(slots) < len(self.hosts) or any(slot.doing.state == LOADING for slot in slots):
            return
        self.trained = True
        if self.state == LOADING:
            self.state = TRAINING
        self.iteration = max(self.iteration, *(slot.doing.iteration for slot in slots))

    def _take_values(self, member: Member, values: dict[str, str]) -> None:
        """The ranks of all hosts meet in a barrier of PMI-1."""
        member.values = values
        if all(other.values is not None for other in self.members):
            everyones = {key: value for other in self.members for key, value in (other.values or {}).items()}
            for other in self.members:
                other.values = None
                other.link.tell(values=everyones)

    def _end(self, cause: Cause) -> None:
        """Log the cause of the end, and end all ranks."""
        self.state = FAILED
        self.launcher.output.closed = True
        if cause.signal and not self._signal:
            self._signal = cause.signal
            log.warning(f"{Signals(cause.signal).name} has ended a process of this job, {self._when()}")
        self.fault = cause.fault and not self._signal
        code = FATAL if cause.fault else cause.code
        self.code = 128 + self._signal if self._signal and code else code
        if cause.message and not cause.logged and self.fault == cause.fault:
            log.fatal(cause.message + self.launcher.snapshots.remedy() * (self.fault and self.last), cause.source)
        for member in self.members:
            member.link.tell(kill=True)

    def _relay(self, number: int) -> None:
        """Send a signal to rank 0 through its agent. One rank is enough: the training loops agree on what to do.

        While a rank loads there is nothing to save, so the job ends at once, as it does on a second SIGTERM.
        """
        again = self._signal == number
        self.asked_to_end |= number in self.launcher.stops
        if number == SIGTERM or self.state == LOADING:
            self._signal = number
        if self.state == LOADING:
            self._end(Cause())
            for member in self.members:
                if not member.slots:  # it imports what ranks need, and listens to nobody
                    member.kill()
        elif again:
            if self.state == TRAINING:
                self._end(Cause())
            for member in self.members:
                member.kill()
        else:
            self.members[0].link.tell(signal=number)
