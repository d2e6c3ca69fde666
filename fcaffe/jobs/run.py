"""One run of a job's ranks by agents: the launcher orders them, hears what they tell, and ends them.

| state    | begins when                         | ends when                                   | after at most           |
|----------|-------------------------------------|---------------------------------------------|-------------------------|
| calling  | the agents are being started        | all are ready; one cannot be reached: failed | CALL                   |
| starting | the ranks are ordered               | all have found one another; a fault: failed | the agents' limits      |
| training | a rank is in its first operation    | a rank has ended; a fault: failed           | the agents' limits      |
| ending   | a rank has ended its training       | all agents have gone                        | the agents' limits      |
| failed   | the cause of the end is known       | all agents have gone; they are killed after | AFTERMATH               |
| gone     | all agents have gone                | -                                           | -                       |

The agents' limits are those of `ranks.py`. An agent that is silent for `silence` seconds is a fault; so is one that goes
before its ranks have ended.
"""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import Any

from fcaffe import log
from fcaffe.jobs import processes
from fcaffe.jobs.blame import hang_message, names
from fcaffe.jobs.crew import CALL, GONE, READY, Crew, Member
from fcaffe.jobs.frames import Message
from fcaffe.jobs.ranks import MARGIN, Slot
from fcaffe.jobs.started import FATAL
from fcaffe.parallel.watchdog import STARTING

CALLING, TRAINING, ENDING, FAILED = "calling", "training", "ending", "failed"
AFTERMATH = 12.0  # seconds that all have to end after the cause is known; with a cut network they may wait for ever
QUIET = 3.5  # seconds without a message after which a host counts as cut off, if ranks wait for it


@dataclass(eq=False)
class Run:
    """One run of the ranks of these `hosts` by its `members`, the agents in the order of their ranks.

    Attributes:
        order: Returns the order for an agent's ranks, once it is ready.
        name: The processes of this host have it in their environment.
        timeout: Seconds for one operation of a rank; 0 for no limit.
        silence: Seconds without a message after which another host counts as lost.
        stops: Signals after which the ranks end by themselves.
        remedy: Returns how to go on after a fault, for its message.
        ends_early: Called once a second; when it returns True the ranks are ended, which is no fault.
        ready: All agents could start their ranks.
        started: All ranks have found one another.
        fault: The job was ended by something that may not happen again, unlike an error.
        asked_to_end: One of the signals `stops` has come.
        advanced: When the `iteration` was first known, in seconds of `time.monotonic`.
        signals: They have come and are not relayed yet.
    """

    crew: Crew
    members: Sequence[Member]
    order: Callable[[int], Message]
    hosts: Sequence[str]
    name: str
    timeout: float
    silence: float
    stops: Collection[int] = ()
    remedy: Callable[[], str] = lambda: ""
    ends_early: Callable[[Run], bool] = lambda run: False
    state: str = CALLING
    ready: bool = False
    started: bool = False
    fault: bool = False
    ended_early: bool = False
    asked_to_end: bool = False
    iteration: int = -1
    advanced: float = 0.0
    code: int = FATAL
    signals: deque[int] = field(default_factory=deque)
    _interrupted: int = 0  # by this signal
    _since: float = 0.0  # when the state began

    def follow(self) -> Run:
        """Return when all agents have gone."""
        self.crew.output.closed = False
        for member in self.members:
            member.listener, member.quiet = self._hear, False
        self._enter(CALLING)
        looked = time.monotonic()
        while any(member.state != GONE for member in self.members):
            self.crew.turn()
            while self.signals:
                self._relay(self.signals.popleft())
            self._look()
            if self.state in (STARTING, TRAINING) and time.monotonic() - looked >= 1:
                looked = time.monotonic()
                if self.ends_early(self):
                    self.ended_early = True
                    self._end(0)
        self._look()
        processes.clear(self.name)
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
                member.link.send(**self.order(index))
            self._enter(STARTING)

    def _look_at_agents(self) -> None:
        for member in self.members:
            silence = f"no sign of life for {member.unheard:.0f} s"
            limit = self.silence if not member.here else self.timeout + 2 * MARGIN if self.timeout else math.inf
            if member.problem:
                message = f"{member}: {member.problem}"
            elif member.state == GONE:
                message = f"{member} died, {self._when()}, and the ranks with it"
            elif member.unheard <= limit:
                continue
            elif slots := list(member.slots.values()):
                who = names(slots, self.hosts)
                message = f"{who} is cut off from the other hosts since {slots[0].where()}: {silence}"
            else:
                message = f"{member} cannot be reached: {silence}, {self._when()}"
            self._end(FATAL, fault=True, message=message)
            member.kill()
            return

    def _end_the_last(self) -> None:
        for member in self.members:
            if member.unheard > self.silence or (self.state == FAILED and time.monotonic() - self._since > AFTERMATH):
                member.kill()

    def _when(self) -> str:
        if not self.started:
            return "before the ranks had started"
        return "before the first iteration" if self.iteration < 0 else f"in iteration {self.iteration}"

    # --- messages of the agents ---------------------------------------------------------------------------------------

    def _hear(self, member: Member, message: Message) -> None:
        takes: dict[str, Callable[[Member, Any], None]] = {
            "ranks": self._take_slots,
            "put": self._take_values,
            "cause": self._take_cause,
        }
        for key, value in message.items():
            if key in takes:
                takes[key](member, value)
            elif key == "warning":
                log.warning(value)
            elif key == "ended" and self.state not in (ENDING, FAILED):
                self.started, self.code = True, value
                self._enter(ENDING)

    def _take_slots(self, member: Member, words: list[Any]) -> None:
        member.slots |= {slot.rank: slot for slot in (Slot(*each) for each in words)}
        slots = [slot for other in self.members for slot in other.slots.values()]
        if len(slots) == len(self.hosts) and all(slot.state != STARTING for slot in slots):
            self.started = True
            if self.state == STARTING:
                self._enter(TRAINING)
            iteration = max(slot.iteration for slot in slots)
            if iteration > self.iteration:
                self.iteration, self.advanced = iteration, time.monotonic()

    def _take_values(self, member: Member, values: list[Any]) -> None:
        """The ranks of all hosts meet in a barrier of PMI-1."""
        member.values = values
        if all(other.values is not None for other in self.members):
            everyones = [pair for other in self.members for pair in other.values or ()]
            for other in self.members:
                other.values = None
                other.link.send(values=everyones)

    def _take_cause(self, member: Member, cause: Message) -> None:
        if self.state in (ENDING, FAILED):
            return
        if cause.get("overdue") is not None and len(self.hosts) > 1:
            others = [other for other in self.members if other is not member]
            cause["message"] = hang_message(
                member.slots[cause["overdue"]],
                list(member.slots.values()),
                [slot for other in others for slot in other.slots.values()],
                [slot for other in others if other.unheard > QUIET for slot in other.slots.values()],
                self.hosts,
                self.timeout,
            )
        cause.pop("overdue", None)
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
        self.crew.output.closed = True
        if signal and not self._interrupted:
            self._interrupted = signal
            log.warning(f"{Signals(signal).name} has ended a process of this job, {self._when()}")
        self.fault = fault and not self._interrupted
        self.code = 128 + self._interrupted if self._interrupted and code else FATAL if fault else code
        if message and not logged and not (fault and self._interrupted):
            log.fatal(message + (self.remedy() if fault else ""), source)
        for member in self.members:
            member.link.send(kill=True)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _relay(self, number: int) -> None:
        """Send a signal to rank 0 through its agent. One rank is enough: the training loops agree on what to do. Before
        the ranks have started, and on a second SIGTERM, end all at once."""
        again = self._interrupted == number
        self.asked_to_end |= number in self.stops
        if number == signal.SIGTERM or not self.started:
            self._interrupted = number
        if again or not self.started:
            if self.state not in (ENDING, FAILED):
                self._end(128 + number)
            for member in self.members:
                member.kill()
        else:
            self.members[0].link.send(signal=number)
