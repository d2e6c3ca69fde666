"""The launcher of a job: starts the agents, and serves them for as long as the job lasts."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection
from types import FrameType

from fcaffe import log
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Plan, Snapshots, bare
from fcaffe.jobs.loop import TURN, Loop
from fcaffe.jobs.member import GONE, Member
from fcaffe.jobs.output import Output
from fcaffe.jobs.processes import AGENT, FOLDER, JOB, LAUNCHER, TO_END
from fcaffe.jobs.silences import KILLING, silence_of
from fcaffe.jobs.started import outside_environment

MODULE = "fcaffe.cli.rank"  # has the functions that an agent calls: `load` before it forks ranks, and `run` in each


class Launcher:
    """Starts ranks as the plan says. `order` returns their order, from the state from which they go on, or None.

    `stops` are signals after which the ranks end by themselves. Within a `with`, it takes the signals that ask for the
    end, and the lines of the log.

    Attributes:
        signals: Those that have come, and that nobody has handled yet.
        members: The agents that live.
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
        self.loop = Loop()
        self.output = Output()
        self.members: list[Member] = []
        self.signals: deque[int] = deque()
        self._environment = {**outside_environment(), LAUNCHER: str(os.getpid())}
        if path := os.environ.get("PYTHONPATH"):  # agents start in other folders than this one
            self._environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
        self.loop.every(TURN, self._look)

    def __enter__(self) -> Launcher:
        self._handlers = {number: signal.signal(number, self._take_signal) for number in TO_END}
        log.set_show(self.output.log)
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + KILLING
        while self.members and time.monotonic() < end:
            for member in self.members:
                member.kill()
            self.turn()
        self.output.finish(lambda: self.signals)
        log.set_show(None)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _take_signal(self, number: int, _: FrameType | None) -> None:
        self.signals.append(number)

    def call(self, host: str) -> Member:
        """Start the agent of a host. An agent on this host outlives this process, to say so and end the ranks."""
        stderr, name = os.dup(2), secrets.token_hex(8)
        try:
            setting = {"host": host, "folder": os.getcwd(), "stderr": stderr, "shell": self.plan.shell}
            words = [*AGENT, json.dumps({**setting, "silence": silence_of(self.plan.timeout)})]
            process = subprocess.Popen(
                words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, JOB: name},  # which its ranks inherit
                cwd=FOLDER,
                pass_fds=[stderr],
                start_new_session=True,  # Ctrl-C is for us alone
            )
        finally:
            os.close(stderr)
        self.members.append(Member(self.loop, process, self.output, bare(host), name))
        return self.members[-1]

    def turn(self, seconds: float = TURN) -> None:
        """Serve the members for some time."""
        self.loop.turn(seconds)
        self.members = [member for member in self.members if member.state != GONE]

    def _look(self, passed: float) -> None:
        for member in self.members:
            member.look(passed)
