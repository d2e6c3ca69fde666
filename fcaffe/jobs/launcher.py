"""The launcher of a job: starts the processes that it talks to (`member.py`), and serves them while a run lasts."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any

from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Plan, Snapshots, bare
from fcaffe.jobs.member import GONE, Member
from fcaffe.jobs.output import Output
from fcaffe.jobs.processes import AGENT, FOLDER, JOB, KILLING, LAUNCHER
from fcaffe.jobs.ranks import SILENCE
from fcaffe.jobs.started import outside_environment
from fcaffe.python_path import python

TICK = 0.25  # seconds
LEAST_SILENCE = 5.0  # seconds: agents send something twice a second
RANK = python("-m", "fcaffe", "rank")  # the words that start a rank, which reads its order


class Launcher:
    """Starts ranks as the plan says. `order` returns their order, from the state from which they go on, or None.

    `stops` are signals after which the ranks end by themselves. One selector serves all members, in `turn`, which is
    called wherever the launcher waits.
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
        self.selector = selectors.DefaultSelector()
        self.output = Output()
        self.members: list[Member] = []
        self.silence = max(LEAST_SILENCE, min(SILENCE, plan.timeout or SILENCE))  # of another host that counts as lost
        self._signals: deque[int] = deque()  # that have come during a run and are not relayed yet
        self._follows = False  # a run
        self._environment = {**outside_environment(), LAUNCHER: str(os.getpid())}
        self._looked = self._beaten = time.monotonic()

    def take_signal(self, number: int, _: FrameType | None) -> None:
        if not self._follows:
            raise SystemExit(128 + number)
        self._signals.append(number)

    def follow(
        self, members: Sequence[Member], relay: Callable[[int], object], check: Callable[[], object] = lambda: None
    ) -> None:
        """Serve the members of a run until all have gone. Calls `relay` with each signal, and `check` often."""
        self._signals.clear()
        self._follows, self.output.closed = True, False
        while any(member.state != GONE for member in members):
            self.turn()
            while self._signals:
                relay(self._signals.popleft())
            check()
        check()
        self._follows = False

    def environment(self) -> dict[str, str]:
        """That of the ranks of one run."""
        return {**self._environment, JOB: secrets.token_hex(8)}

    def rest(self, seconds: float) -> None:
        """Wait, and serve the members meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(min(left, TICK))

    def call(self, host: str) -> Member:
        """Start the agent of a host. An agent on this host outlives this process, to say so and end the ranks."""
        stderr = os.dup(2)
        try:
            setting = {"host": host, "folder": os.getcwd(), "stderr": stderr, "shell": self.plan.shell}
            words = [*AGENT, json.dumps(setting)]
            return self._add(words, bare(host), env=self._environment, cwd=FOLDER, pass_fds=[stderr])
        finally:
            os.close(stderr)

    def _add(self, words: Sequence[str], host: str, **settings: Any) -> Member:
        settings |= dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(words, bufsize=0, start_new_session=True, **settings)  # Ctrl-C is for us alone
        self.members.append(Member(process, self.selector, self.output, host))
        return self.members[-1]

    def turn(self, seconds: float = TICK) -> None:
        """Serve the members for some time; every second they get a sign of life, even if they have no ranks."""
        for key, _ in self.selector.select(seconds):
            key.data()
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 4 * TICK), now  # this process may be stopped for a while
        for member in self.members:
            member.tick(passed)
        self.members = [member for member in self.members if member.state != GONE]
        if now - self._beaten >= 1:
            self._beaten = now
            for member in self.members:
                member.link.send()
        self.output.flush()

    def dismiss(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.kill()
        end = time.monotonic() + KILLING
        while self.members and time.monotonic() < end:
            self.turn(0.05)
