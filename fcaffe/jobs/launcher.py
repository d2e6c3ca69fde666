"""The launcher: starts the ranks of a plan with an order, as often as `launch.py` and `elastic.py` ask for it."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from fcaffe import log
from fcaffe.jobs.agent import SILENCE
from fcaffe.jobs.call import bare
from fcaffe.jobs.crew import TICK, Crew, Member
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Hosts, Plan
from fcaffe.jobs.pmi import process_mapping
from fcaffe.jobs.processes import JOB
from fcaffe.jobs.run import Run
from fcaffe.jobs.started import LAUNCHED, host_name

RANK = [sys.executable, "-m", "fcaffe", "rank"]  # the words that start a rank, which reads its order
LEAST_SILENCE = 5.0  # seconds: agents send something once a second


class TakesSignals(Protocol):
    signals: deque[int]


class Snapshots:
    """What a job knows of the states that its ranks write; this one is of a job that writes none."""

    def newest(self) -> str | None:
        """The newest state that this job has written."""
        return None

    def source(self) -> str:
        """Where ranks that start again begin, for a message."""
        return self.newest() or "the start"

    def remedy(self) -> str:
        """How to go on after a fault, for the end of its message."""
        return ""


class Launcher:
    """Starts ranks with an order, as the plan says. `order` is a function of the state to resume from, or None."""

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
        self.run: TakesSignals | None = None

    def take_signal(self, number: int) -> None:
        if self.run is None:  # between two runs
            raise SystemExit(128 + number)
        self.run.signals.append(number)

    def environment(self, workers: int) -> dict[str, str]:
        """That of the ranks of one run."""
        return {**self.crew.environment, LAUNCHED: str(workers), JOB: secrets.token_hex(8)}

    def start(
        self,
        hosts: Hosts,
        members: Sequence[Member],
        path: str | None = None,
        last: bool = False,
        ends_early: Callable[[Run], bool] = lambda run: False,
    ) -> Run:
        """Run so many ranks on each host by these agents, numbered in this order, from the state `path`.

        After the `last` run a fault ends the job, and its message says how to go on.
        """
        counts = [count for _, count in hosts]
        names = [bare(host) for host, count in hosts for _ in range(count)]
        environment, timeout = self.environment(len(names)), self.plan.timeout
        silence = max(LEAST_SILENCE, min(SILENCE, timeout or SILENCE))

        def order(index: int) -> Message:
            return {
                "program": RANK,
                "environment": {**environment, "PMI_HOSTNAME": members[index].host},
                "order": self.order(path),
                "hosts": names,
                "first": sum(counts[:index]),
                "count": counts[index],
                "mapping": process_mapping(counts),
                "timeout": timeout,
                "silence": silence,
            }

        where = f" on {','.join(f'{name}:{count}' for name, count in hosts)}" if self.plan.hosts else ""
        log.info(f"Starting the ranks: {len(names)} x {shlex.join(RANK)}{where}")
        remedy = self.snapshots.remedy if last else lambda: ""
        job = environment[JOB]
        run = Run(self.crew, members, order, names, job, timeout, silence, self.stops, remedy, ends_early)
        self.run = run
        try:
            return run.follow()
        finally:
            self.run = None

    def run_agents(self, path: str | None, last: bool) -> Run:
        hosts = self.plan.hosts or ((host_name(), self.plan.workers),)
        return self.start(hosts, [self.crew.call(host) for host, _ in hosts], path, last)

    def rest(self, seconds: float) -> None:
        """Wait, and serve the members meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.crew.turn(min(left, TICK))
