"""The launcher of a job: what all its runs share."""

from __future__ import annotations

import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import FrameType

from fcaffe.jobs.crew import GONE, TICK, Crew, Member
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Plan, Snapshots
from fcaffe.jobs.loop import SILENCE
from fcaffe.jobs.processes import JOB
from fcaffe.jobs.started import LAUNCHED

LEAST_SILENCE = 5.0  # seconds: agents send something twice a second
RANK = [sys.executable, "-m", "fcaffe", "rank"]  # the words that start a rank, which reads its order


class Launcher:
    """Starts ranks as the plan says. `order` returns their order, from the state from which they go on, or None.

    `stops` are signals after which the ranks end by themselves.
    """

    def __init__(
        self,
        plan: Plan,
        order: Callable[[str | None], Message],
        stops: Collection[int] = (),
        snapshots: Snapshots | None = None,
    ) -> None:
        self.plan, self.order, self.stops = plan, order, stops
        self.snapshots = snapshots or Snapshots()
        self.crew = Crew(plan.shell)
        self.silence = max(LEAST_SILENCE, min(SILENCE, plan.timeout or SILENCE))  # of another host that counts as lost
        self._signals: deque[int] = deque()  # that have come during a run and are not relayed yet
        self._follows = False  # a run

    def take_signal(self, number: int, _: FrameType | None) -> None:
        if not self._follows:
            raise SystemExit(128 + number)
        self._signals.append(number)

    def follow(
        self, members: Sequence[Member], relay: Callable[[int], object], check: Callable[[], object] = lambda: None
    ) -> None:
        """Serve the members of a run until all have gone. Calls `relay` with each signal, and `check` often."""
        self._signals.clear()
        self._follows, self.crew.output.closed = True, False
        while any(member.state != GONE for member in members):
            self.crew.turn()
            while self._signals:
                relay(self._signals.popleft())
            check()
        check()
        self._follows = False

    def environment(self, workers: int) -> dict[str, str]:
        """That of the ranks of one run."""
        return {**self.crew.environment, LAUNCHED: str(workers), JOB: secrets.token_hex(8)}

    def rest(self, seconds: float) -> None:
        """Wait, and serve the members meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.crew.turn(min(left, TICK))
