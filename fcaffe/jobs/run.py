"""One run of a job's ranks by agents: the launcher sends them orders, handles their messages, and ends them.

| state    | begins when                      | ends when                                      | after at most       |
|----------|----------------------------------|------------------------------------------------|---------------------|
| calling  | the agents are being started     | all are ready; one cannot be reached: failed   | CALL                |
| starting | the ranks are ordered            | all have found one another; a fault: failed    | the agents' limits  |
| training | a rank is in its first operation | a rank has ended its training; a fault: failed | the agents' limits  |
| ending   | a rank has ended its training    | all agents have gone                           | the agents' limits  |
| failed   | the cause of the end is known    | all agents have gone; killed after             | AFTERMATH           |

The agents' limits are those of `ranks.py`. An agent that is silent for `silence` seconds is a fault, and so is one that
goes before its ranks have ended.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from signal import SIGTERM, Signals
from typing import Any

from fcaffe import log
from fcaffe.jobs import processes
from fcaffe.jobs.blame import hang_message
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Hosts, bare
from fcaffe.jobs.launcher import RANK, Launcher
from fcaffe.jobs.member import CALL, GONE, READY, Member
from fcaffe.jobs.pmi import process_mapping
from fcaffe.jobs.processes import JOB
from fcaffe.jobs.ranks import MARGIN, Slot
from fcaffe.jobs.started import FATAL
from fcaffe.parallel.watchdog import STARTING

CALLING, TRAINING, ENDING, FAILED = "calling", "training", "ending", "failed"
AFTERMATH = 12.0  # seconds that all have to end after the cause is known; with a cut network they may wait for ever
QUIET = 3.5  # seconds without a message after which a host counts as cut off, if ranks wait for it


class Run:
    """A run of so many ranks on each host by the agents `members`, numbered in this order, from the state `path`.

    After the `last` run a fault ends the job, and its message says how to go on. `ends_early` is called once a second;
    when it returns True the ranks are ended, which is no fault.

    Attributes:
        ready: All agents could start their ranks.
        started: All ranks have found one another.
        fault: The job was ended by something that may not happen again, unlike an error.
        asked_to_end: A signal has come after which the ranks end by themselves.
        advanced: When the `iteration` was first known, in seconds of `time.monotonic`.
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
        self.launcher, self.members, self.path, self.last = launcher, members, path, last
        self.ends_early = ends_early
        self.counts = [count for _, count in hosts]
        self.hosts = [bare(host) for host, count in hosts for _ in range(count)]  # of each rank
        self.environment = launcher.environment()
        self.timeout = launcher.plan.timeout
        self.ready = self.started = self.fault = self.ended_early = self.asked_to_end = False
        self.iteration, self.advanced, self.code = -1, 0.0, FATAL
        self._interrupted = 0  # by this signal
        self._asked = time.monotonic()  # when `ends_early` was called last
        self._enter(CALLING)
        where = f" on {','.join(f'{name}:{count}' for name, count in hosts)}" if launcher.plan.hosts else ""
        log.info(f"Starting the ranks: {len(self.hosts)} x {shlex.join(RANK)}{where}")

    def follow(self) -> Run:
        """Return when all agents have gone."""
        for member in self.members:
            member.listener, member.quiet = self._hear, False
        self.launcher.follow(self.members, self._relay, self._look)
        processes.clear(self.environment[JOB])
        return self

    def _enter(self, state: str) -> None:
        self.state, self._since = state, time.monotonic()

    def _look(self) -> None:
        looks = {CALLING: self._call, STARTING: self._look_at_agents, TRAINING: self._look_at_agents}
        looks.get(self.state, self._end_the_last)()

    def _call(self) -> None:
        late = time.monotonic() - self._since > CALL
        for member in self.members:
            if member.state == GONE or member.problem or (late and member.state != READY):
                self._end(FATAL, fault=True, message=member.why_not_ready())
                return
        if all(member.state == READY for member in self.members):
            self.ready = True
            for index, member in enumerate(self.members):
                member.link.send(
                    program=RANK,
                    environment={**self.environment, "PMI_HOSTNAME": member.host},
                    order=self.launcher.order(self.path),
                    hosts=self.hosts,
                    first=sum(self.counts[:index]),
                    count=self.counts[index],
                    mapping=process_mapping(self.counts),
                    timeout=self.timeout,
                    silence=self.launcher.silence,
                )
            self._enter(STARTING)

    def _look_at_agents(self) -> None:
        of_this_host = self.timeout + 2 * MARGIN if self.timeout else math.inf
        for member in self.members:
            limit = of_this_host if member.here else self.launcher.silence
            if member.problem or member.state == GONE or member.unheard > limit:
                self._end(FATAL, fault=True, message=member.why_lost(self.hosts, self._when()))
                member.kill()
                return
        if time.monotonic() - self._asked >= 1:
            self._asked = time.monotonic()
            if self.ends_early(self):
                self.ended_early = True
                self._end(0)

    def _end_the_last(self) -> None:
        late = self.state == FAILED and time.monotonic() - self._since > AFTERMATH
        for member in self.members:
            if late or member.unheard > MARGIN:
                member.kill()

    def _when(self) -> str:
        if not self.started:
            return "before the ranks had started"
        return "before the first iteration" if self.iteration < 0 else f"in iteration {self.iteration}"

    def _hear(self, member: Member, message: Message) -> None:
        if "ranks" in message:
            self._take_slots(member, message["ranks"])
        elif "put" in message:
            self._take_values(member, message["put"])
        elif "warning" in message:
            log.warning(message["warning"])
        elif self.state in (ENDING, FAILED):
            return
        elif "cause" in message:
            self._take_cause(member, **message["cause"])
        elif "ended" in message:
            self.started, self.code = True, message["ended"]
            self._enter(ENDING)

    def _take_slots(self, member: Member, words: list[Any]) -> None:
        member.slots = [Slot(*each) for each in words]
        slots = [slot for other in self.members for slot in other.slots]
        if len(slots) == len(self.hosts) and all(slot.state != STARTING for slot in slots):
            self.started = True
            if self.state == STARTING:
                self._enter(TRAINING)
            iteration = max(slot.iteration for slot in slots)
            if iteration > self.iteration:
                self.iteration, self.advanced = iteration, time.monotonic()

    def _take_values(self, member: Member, values: dict[str, str]) -> None:
        """The ranks of all hosts meet in a barrier of PMI-1."""
        member.values = values
        if all(other.values is not None for other in self.members):
            everyones = {key: value for other in self.members for key, value in (other.values or {}).items()}
            for other in self.members:
                other.values = None
                other.link.send(values=everyones)

    def _take_cause(self, member: Member, overdue: list[Any] | None = None, **cause: Any) -> None:
        if overdue is not None:
            others = [other for other in self.members if other is not member]
            distant = [slot for other in others for slot in other.slots]
            silent = [slot for other in others if other.unheard > QUIET for slot in other.slots]
            cause["message"] = hang_message(Slot(*overdue), member.slots, distant, silent, self.hosts, self.timeout)
        self._end(**cause)

    def _end(
        self,
        code: int,
        fault: bool = False,
        message: str = "",
        signal: int = 0,
        logged: bool = False,
        source: str | None = None,
    ) -> None:
        """Take the cause of the end: log it, and end all ranks."""
        self._enter(FAILED)
        self.launcher.output.closed = True
        if signal and not self._interrupted:
            self._interrupted = signal
            log.warning(f"{Signals(signal).name} has ended a process of this job, {self._when()}")
        self.fault = fault and not self._interrupted
        self.code = 128 + self._interrupted if self._interrupted and code else FATAL if fault else code
        if message and not logged and not (fault and self._interrupted):
            log.fatal(message + (self.launcher.snapshots.remedy() if fault and self.last else ""), source)
        for member in self.members:
            member.link.send(kill=True)

    def _relay(self, number: int) -> None:
        """Send a signal to rank 0 through its agent. One rank is enough: the training loops agree on what to do. Before
        the ranks have started, and on a second SIGTERM, end all at once."""
        again = self._interrupted == number
        self.asked_to_end |= number in self.launcher.stops
        if number == SIGTERM or not self.started:
            self._interrupted = number
        if again or not self.started:
            if self.state not in (ENDING, FAILED):
                self._end(128 + number)
            for member in self.members:
                member.kill()
        else:
            self.members[0].link.send(signal=number)
