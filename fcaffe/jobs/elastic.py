"""Elastic jobs: a sequence of runs of the ranks (generations), each on all hosts that can be reached at its start.

Each generation continues from the newest snapshot. An agent waits on each host without ranks. So a host that comes
back, or that is added to the hostfile, is known at once. It joins after the next snapshot.
"""

from __future__ import annotations

import time

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.jobs.hosts import Elastic, Hosts, ranks_of_hosts
from fcaffe.jobs.launcher import Launcher
from fcaffe.jobs.member import CALL, CALLING, READY, Member
from fcaffe.jobs.run import Run

PAUSE = 5.0  # seconds between two attempts to reach a host
PATIENCE = 900.0  # seconds that a job with too few hosts waits for them
FUTILE = 5  # generations in sequence that end without a new snapshot, after which the job ends


class Pool:
    """The hosts of an elastic job, and the agents that wait there without ranks."""

    def __init__(self, launcher: Launcher, elastic: Elastic) -> None:
        self.launcher = launcher
        self.elastic = elastic
        self.hosts = elastic.hosts()
        self.waiting: dict[str, Member] = {}  # by host
        self.at_work: list[str] = []  # hosts of the generation that runs
        self._called: dict[str, float] = {}  # when each host was called last
        self._named: set[str] = set()  # hosts of which the log says why they cannot be reached
        self._problem = ""  # of the list of hosts
        self._next_call = 0.0

    def call(self) -> None:
        """Read the list of hosts, and start an agent on each that has none."""
        now = time.monotonic()
        if now < self._next_call:
            return
        self._next_call = now + PAUSE / 10
        self._read_hosts()
        for host, member in list(self.waiting.items()):
            if member.is_lost():
                if host not in self._named:
                    log.warning(member.why_not_ready())
                self._named.add(host)
                member.kill()
                del self.waiting[host]
        for host, _ in self.hosts:
            if host not in self.waiting and host not in self.at_work and now > self._called.get(host, -PAUSE) + PAUSE:
                self.waiting[host] = member = self.launcher.call(host)
                member.quiet = host in self._named
                self._called[host] = now

    def _read_hosts(self) -> None:
        """The last good list stays if there is none: an editor may just be saving the file."""
        try:
            self.hosts, self._problem = self.elastic.hosts(), ""
        except UsageError as problem:
            if self._problem != str(problem):
                self._problem = str(problem)
                log.warning(f"{problem}; the job goes on with the hosts that it knows")

    def available(self) -> Hosts:
        """The hosts whose agents can start ranks or have done so, and the number of ranks that each takes."""
        ready = {host for host, member in self.waiting.items() if member.state == READY}
        self._named -= ready
        return [(host, count) for host, count in self.hosts if host in ready or host in self.at_work]

    def choose(self) -> Hosts:
        """The hosts of the largest generation that is possible now, with their ranks; empty if none is possible."""
        hosts = self.available()
        room = min(self.elastic.most, sum(count for _, count in hosts))
        for workers in range(room, self.elastic.least - 1, -1):
            if self.elastic.fits(workers):
                return ranks_of_hosts(workers, hosts)
        return ()

    def gather(self, limit: float, patience: float, expected: int) -> Hosts:
        """Wait for `expected` workers or all hosts, at most `limit` seconds, then choose from those that are ready.
        UsageError if they are still too few after `patience` seconds more."""
        began = time.monotonic()
        while True:
            self.call()
            chosen, waited = self.choose(), time.monotonic() - began
            complete = len(self.available()) == len(self.hosts)
            if chosen and (complete or sum(count for _, count in chosen) >= expected or waited > limit):
                return chosen
            if waited > limit + patience:
                names = ", ".join(host for host, _ in self.available()) or "none"
                raise UsageError(
                    f"--elastic needs {self.elastic.least} workers, and of its hosts these can be reached: {names}"
                )
            self.launcher.turn()

    def connect(self) -> Hosts:
        """The hosts of the first generation. On a busy machine agents may take longer than `rejoin` to start."""
        began = time.monotonic()
        self.call()
        while time.monotonic() < began + CALL and any(m.state == CALLING for m in self.waiting.values()):
            self.launcher.turn()
            self.call()
        return self.gather(self.elastic.rejoin, 0.0, self.elastic.most)

    def take(self, chosen: Hosts) -> list[Member]:
        """The agents of these hosts, to start ranks."""
        self.at_work = [host for host, _ in chosen]
        for host in self.at_work:
            self._called.pop(host, None)  # if it is lost it may be called at once
        return [self.waiting.pop(host) for host in self.at_work]


def run_generations(launcher: Launcher, elastic: Elastic) -> int:
    """Run generations until one ends by itself; returns its exit code."""
    pool, newest = Pool(launcher, elastic), launcher.snapshots.newest
    watch = _Watch(pool)
    futile = 0
    chosen = pool.connect()
    path = newest()
    while True:
        run = Run(launcher, chosen, pool.take(chosen), path, ends_early=watch).follow()
        pool.at_work = []
        before, path = path, newest()
        futile = futile + 1 if path == before else 0
        if not (run.fault or run.ended_early) or run.asked_to_end:
            return run.code
        if run.fault and futile == FUTILE:
            why = f"{FUTILE} generations in sequence ended without a new snapshot, so the job ends"
            log.fatal(why + launcher.snapshots.remedy())
            return run.code
        watch.end(run)
        if run.ended_early:
            chosen = pool.gather(CALL, PATIENCE, watch.expected)
        else:
            chosen = pool.gather(elastic.rejoin, PATIENCE, elastic.most)
        workers = sum(count for _, count in chosen)
        missing = [host for host, _ in pool.hosts if host not in dict(chosen)]
        log.warning(
            f"Generation {watch.number}: {workers} worker{'s' * (workers > 1)} on "
            + ",".join(host for host, _ in chosen)
            + (f" (without {', '.join(missing)})" if missing else "")
            + f", from {launcher.snapshots.source()}"
        )


class _Watch:
    """Called once a second while a generation runs. Reports when it trains and how many seconds the interruption cost,
    and ends it when hosts can join."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.number = 0  # of the generation
        self.snapshot: str | None = None  # the newest when a host became ready to join
        self.joining = False
        self.expected = 0  # workers of the next generation, for which this one ended
        self._ended = 0.0  # when the last generation ended, until this one trains
        self._reached = -1  # the iteration at which training stood still
        self._stood_since = 0.0  # since when, until training is there again

    def end(self, run: Run) -> None:
        """Note the end of a generation."""
        self.number += 1
        self.joining = False
        self._ended = time.monotonic()
        if not self._stood_since:
            self._reached, self._stood_since = run.iteration, run.advanced

    def __call__(self, run: Run) -> bool:
        now = time.monotonic()
        if run.started and self._ended:
            log.info(f"Generation {self.number} trains, {now - self._ended:.1f} s after the last ended")
            self._ended = 0.0
        if self._stood_since and run.iteration >= max(0, self._reached):
            log.info(f"Iteration {run.iteration} again: the interruption cost {now - self._stood_since:.1f} s")
            self._stood_since = 0.0
        self.pool.call()
        chosen = self.pool.choose()
        self.expected = sum(count for _, count in chosen)
        if self.expected <= len(run.hosts):
            self.joining = False
            return False
        newest = run.launcher.snapshots.newest()
        if not self.joining:
            self.joining, self.snapshot = True, newest
        if newest == self.snapshot:
            return False
        joins = ", ".join(host for host, _ in chosen if host not in self.pool.at_work)
        log.info(f"{joins or 'More of the hosts'} can take part: this generation ends after {newest}")
        return True
