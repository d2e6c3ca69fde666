"""Elastic jobs: a sequence of runs of the ranks (generations), each on all hosts that can be reached at its start.

Each generation continues from the newest snapshot. An agent waits on each host without ranks. So a host that comes
back, or that is added to the hostfile, is known at once. It joins after the next snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel.job import Job
from fcaffe.parallel.launcher import Launcher, resuming
from fcaffe.parallel.member import Member, Output
from fcaffe.parallel.placement import Elastic, Hosts, ranks_of_hosts

CALL = 5.0  # seconds between two attempts to reach a host
PATIENCE = 900.0  # seconds that a job with too few hosts waits for them
FIRST_CALL = 60.0  # seconds that the agents of a starting job have to answer
FUTILE = 5  # generations in sequence that end without a new snapshot, after which the job ends


class Crew:
    """The hosts of an elastic job and their agents."""

    def __init__(self, launcher: Launcher, elastic: Elastic) -> None:
        self.launcher = launcher
        self.elastic = elastic
        self.hosts: Hosts = ()
        self.waiting: dict[str, Member] = {}  # agents without ranks, by host
        self.at_work: list[str] = []  # hosts of the generation that runs
        self._called: dict[str, float] = {}  # when each host was called last
        self._next_call = 0.0

    def call(self) -> None:
        """Start an agent on each host that has none."""
        now = time.monotonic()
        if now < self._next_call:
            return
        self._next_call = now + CALL / 10
        self.hosts = self.elastic.hosts()
        for host, _ in self.hosts:
            member = self.waiting.get(host)
            lost = member is None or member.code is not None
            if lost and host not in self.at_work and now > self._called.get(host, -CALL) + CALL:
                silent = Output()
                silent.closed = host in self._called  # the first call has printed why it cannot be reached
                self.waiting[host] = self.launcher.start_agent(host, silent)
                self._called[host] = now

    def connect(self) -> None:
        """Start the agents of a new job. On a busy machine that may take longer than `rejoin`."""
        self.call()
        end = time.monotonic() + FIRST_CALL
        while any(not member.ready and member.code is None for member in self.waiting.values()):
            if time.monotonic() > end:
                return
            time.sleep(0.05)

    def available(self) -> Hosts:
        """The hosts whose agents can start ranks or have done so, and the number of ranks that each takes."""
        ready = {host for host, member in self.waiting.items() if member.ready and member.code is None}
        return [(host, count) for host, count in self.hosts if host in ready or host in self.at_work]

    def choose(self) -> Hosts:
        """The hosts of the largest generation that is possible now, with their ranks; empty if none is possible."""
        hosts = self.available()
        room = min(self.elastic.most, sum(count for _, count in hosts))
        for workers in range(room, self.elastic.least - 1, -1):
            if self.elastic.fits(workers):
                return ranks_of_hosts(workers, hosts)
        return ()

    def gather(self, patience: float, expected: int = 0) -> Hosts:
        """Wait `rejoin` seconds at most for all hosts, then choose from those that can be reached. Raises UsageError if
        they are still too few after `patience` seconds more. If no host was lost, wait for `expected` workers."""
        began, limit = time.monotonic(), FIRST_CALL if expected else self.elastic.rejoin
        while True:
            self.call()
            chosen, waited = self.choose(), time.monotonic() - began
            complete = len(self.available()) == len(self.hosts)
            if chosen and (complete or sum(n for _, n in chosen) >= (expected or self.elastic.most) or waited > limit):
                return chosen
            if waited > limit + patience:
                names = ", ".join(host for host, _ in self.available()) or "none"
                raise UsageError(
                    f"--elastic needs {self.elastic.least} workers, and of its hosts these can be reached: {names}"
                )
            time.sleep(0.05)

    def take(self, chosen: Hosts) -> list[Member]:
        """The agents of these hosts, to start ranks."""
        self.at_work = [host for host, _ in chosen]
        members = [self.waiting.pop(host) for host in self.at_work]
        for member in members:
            member.output = self.launcher.output
        for host in self.at_work:
            self._called.pop(host)  # if it is lost it may be called at once
        return members

    def dismiss(self) -> None:
        for member in self.waiting.values():
            member.kill()


def run_generations(launcher: Launcher, elastic: Elastic, newest_snapshot: Callable[[], str | None]) -> int:
    """Run generations until one ends by itself; returns its exit code."""
    crew = Crew(launcher, elastic)
    watch = _Watch(crew, newest_snapshot)
    futile = 0
    crew.connect()
    chosen = crew.gather(patience=0.0)
    path = newest_snapshot()
    try:
        while True:
            watch.workers = sum(count for _, count in chosen)
            job = launcher.run_on(chosen, lambda: crew.take(chosen), resuming(path), watch)  # noqa: B023
            crew.at_work = []
            before, path = path, newest_snapshot()
            futile = futile + 1 if path == before else 0
            if not (job.fault or job.ended_early) or job.asked_to_end:
                return job.code
            if job.fault and futile == FUTILE:
                log.fatal(f"{FUTILE} generations in sequence ended without a new snapshot, so the job ends")
                return job.code
            watch.end(job)
            chosen = crew.gather(PATIENCE, watch.expected if job.ended_early else 0)
            workers = sum(count for _, count in chosen)
            missing = [host for host, _ in crew.hosts if host not in dict(chosen)]
            log.warning(
                f"Generation {watch.number}: {workers} worker{'s' * (workers > 1)} on "
                + ",".join(host for host, _ in chosen)
                + (f" (without {', '.join(missing)})" if missing else "")
                + (f", from {path}" if path else ", from the start")
            )
    finally:
        crew.dismiss()


class _Watch:
    """Called once a second while a generation runs. Reports when it trains and how many seconds the interruption cost,
    and ends it when hosts can join. `workers` is the number of its ranks."""

    def __init__(self, crew: Crew, newest_snapshot: Callable[[], str | None]) -> None:
        self.crew = crew
        self.newest_snapshot = newest_snapshot
        self.number = self.workers = 0
        self.snapshot: str | None = None  # the newest when a host became ready to join
        self.joining = False
        self.expected = 0  # workers of the next generation, for which this one ended
        self._ended = 0.0  # when the last generation ended, until this one trains
        self._reached = -1  # the iteration at which training stood still
        self._stood_since = 0.0  # since when, until training is there again

    def end(self, job: Job) -> None:
        """Note the end of a generation."""
        self.number += 1
        self.joining = False
        self._ended = time.monotonic()
        if not self._stood_since:
            self._reached, self._stood_since = job.iteration, job.advanced

    def __call__(self, job: Job) -> bool:
        now = time.monotonic()
        if job.started and self._ended:
            log.info(f"Generation {self.number} trains, {now - self._ended:.1f} s after the last ended")
            self._ended = 0.0
        if self._stood_since and job.iteration >= max(0, self._reached):
            log.info(f"Iteration {job.iteration} again: the interruption cost {now - self._stood_since:.1f} s")
            self._stood_since = 0.0
        self.crew.call()
        chosen = self.crew.choose()
        self.expected = sum(count for _, count in chosen)
        if self.expected <= self.workers:
            self.joining = False
            return False
        newest = self.newest_snapshot()
        if not self.joining:
            self.joining, self.snapshot = True, newest
        if newest == self.snapshot:
            return False
        joins = ", ".join(host for host, _ in chosen if host not in self.crew.at_work)
        log.info(f"{joins or 'More of the hosts'} can take part: this generation ends after {newest}")
        return True
