"""Starts the ranks of a job, again and again after faults: on which hosts, and whether there is a next run.

A job of a fixed number of workers needs all of its hosts: one that cannot be reached at the first start ends the job,
and has PATIENCE to come back after a fault. Each run of an elastic job, a generation, takes all hosts that can be
reached at its start. An agent waits on each host without ranks. So a host that comes back, or that is added to the
hostfile, is known at once; it joins after the next snapshot. Each run continues from the newest snapshot.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Elastic, Hosts, Plan, Snapshots, ranks_of_hosts
from fcaffe.jobs.launcher import Launcher
from fcaffe.jobs.member import CALLING, READY, Member
from fcaffe.jobs.mpi_start import load_mpi
from fcaffe.jobs.run import Run
from fcaffe.jobs.silences import CALL, PATIENCE
from fcaffe.jobs.started import Start, host_name

PAUSE = 5.0  # seconds between two attempts to reach a host
FUTILE = 5  # generations in sequence that end without a new snapshot, after which an elastic job ends


def launch(
    plan: Plan,
    order: Callable[[str | None], Message],
    stops: Collection[int] = (),
    snapshots: Snapshots | None = None,
) -> int:
    """Run the ranks of the plan, each with `order(state to resume from)`; returns the exit code of the job.

    After a fault it starts again, up to `plan.restarts` times, from the newest of `snapshots`, or as it began. The end
    of a job by a signal is no fault, whichever process gets the signal. After one of the signals `stops`, which end a
    training, nothing is started again. Raises UsageError where there is no Linux.
    """
    if sys.platform != "linux":
        raise UsageError("Several workers and --restarts need Linux: train with one worker, without these flags")
    if plan.workers > 1:
        load_mpi(Start("fcaffe", "", 0, plan.workers), by_fcaffe=True)  # so that it is known before any host is called
    with Launcher(plan, order, stops, snapshots) as launcher:
        pool, code = Pool(launcher), 0
        while chosen := pool.choose():
            run = pool.start(chosen).follow()
            if not pool.goes_on(run):
                code = run.code
                break
        else:
            code = 128 + launcher.signals[0]
    if launcher.output.unwritten is not None and not code:
        raise launcher.output.unwritten
    return code


def count(hosts: Hosts) -> int:
    return sum(number for _, number in hosts)


class Pool:
    """The hosts of a job, and the agents that wait there without ranks.

    Attributes:
        number: Number of runs that have ended.
        waiting: The agents, by host.
        at_work: Hosts of the run that goes on.
    """

    def __init__(self, launcher: Launcher) -> None:
        plan = launcher.plan
        fixed = plan.hosts or ((host_name(), plan.workers),)
        self.launcher = launcher
        self.elastic = plan.elastic or Elastic(plan.workers, plan.workers, 0.0, lambda: fixed, lambda workers: True)
        self.is_fixed = plan.elastic is None
        self.hosts = self.elastic.hosts()
        self.number = 0
        self.waiting: dict[str, Member] = {}
        self.at_work: list[str] = []
        self._called: dict[str, float] = {}  # when each host was called last
        self._named: set[str] = set()  # hosts of which the log says why they cannot be reached
        self._problem = ""  # of the list of hosts
        self._expected = self.elastic.most  # workers of the next run
        self._path: str | None = None  # from which this run has begun
        self._futile = 0  # runs in sequence without a new snapshot
        self._joins: tuple[str | None] | None = None  # the newest snapshot when a host became ready to join

    def call(self) -> None:
        """Read the list of hosts, and start an agent on each that has none."""
        self.read_hosts()
        now = time.monotonic()
        for host, member in list(self.waiting.items()):
            if member.is_lost:
                del self.waiting[host]
                member.kill()
                if self.is_fixed and not self.number:
                    raise UsageError(member.why_not_ready())
                if host not in self._named:
                    log.warning(f"{member.why_not_ready()}; it is called again every {PAUSE:g} s")
                self._named.add(host)
        for host, _ in self.hosts:
            if host not in self.waiting and host not in self.at_work and now > self._called.get(host, -PAUSE) + PAUSE:
                self.waiting[host] = member = self.launcher.call(host)
                member.quiet = host in self._named
                self._called[host] = now

    def read_hosts(self) -> None:
        """The last good list stays if there is none: an editor may just be saving the file."""
        try:
            self.hosts, self._problem = self.elastic.hosts(), ""
        except UsageError as problem:
            if self._problem != str(problem):
                self._problem = str(problem)
                log.warning(f"{problem}; the job goes on with the hosts that it knows")

    def available(self) -> Hosts:
        """The hosts whose agents can start ranks or have done so, and the number of ranks that each takes."""
        ready = {host for host, member in self.waiting.items() if member.state == READY and not member.is_lost}
        self._named -= ready
        return [(host, number) for host, number in self.hosts if host in ready or host in self.at_work]

    def largest(self) -> Hosts:
        """The hosts of the largest run that is possible now, with their ranks; empty if none is possible."""
        hosts = self.available()
        for workers in range(min(self.elastic.most, count(hosts)), self.elastic.least - 1, -1):
            if self.elastic.fits(workers):
                return ranks_of_hosts(workers, hosts)
        return ()

    def choose(self) -> Hosts:
        """Wait for the expected workers or all hosts, at most `rejoin` seconds, then choose from the ready ones.

        On a busy machine the first agents may take longer to start. Later runs wait for PATIENCE if the workers are too
        few. Returns no hosts if a signal has come meanwhile. Raises UsageError.
        """
        began = time.monotonic()
        rejoin = CALL if self._joins else self.elastic.rejoin
        limit = rejoin + PATIENCE if self.number else math.inf if self.is_fixed else rejoin
        while not self.launcher.signals:
            self.call()
            chosen, waited = self.largest(), time.monotonic() - began
            calling = not self.number and waited < CALL and any(m.state == CALLING for m in self.waiting.values())
            complete = len(self.available()) == len(self.hosts) or count(chosen) >= self._expected
            if chosen and (complete or (waited > rejoin and not calling)):
                return chosen
            if waited > limit and not calling:
                names = ", ".join(host for host, _ in self.available()) or "none"
                what = "this job" if self.is_fixed else "--elastic"
                raise UsageError(
                    f"{what} needs {self.elastic.least} workers, and of its hosts these can be reached: {names}"
                )
            self.launcher.turn()
        return ()

    def start(self, chosen: Hosts) -> Run:
        """Start the ranks on these hosts, from the newest snapshot of this job."""
        if self.number and not self.is_fixed:
            missing = [host for host, _ in self.hosts if host not in dict(chosen)]
            workers = count(chosen)
            log.warning(
                f"Generation {self.number}: {workers} worker{'s' * (workers > 1)} on "
                + ",".join(host for host, _ in chosen)
                + (f" (without {', '.join(missing)})" if missing else "")
                + f", from {self.launcher.snapshots.source()}"
            )
        self._path, self._joins = self.launcher.snapshots.newest(), None
        self.at_work = [host for host, _ in chosen]
        for host in self.at_work:
            self._called.pop(host, None)  # if it is lost it may be called at once
        members = [self.waiting.pop(host) for host in self.at_work]
        is_last = self.is_fixed and self.number == self.launcher.plan.restarts
        return Run(self.launcher, chosen, members, self._path, is_last, self._ends_early)

    def goes_on(self, run: Run) -> bool:
        """Whether another run follows this one, which has ended."""
        self.at_work = []
        snapshots, restarts = self.launcher.snapshots, self.launcher.plan.restarts
        self._futile = self._futile + 1 if snapshots.newest() == self._path else 0
        if not (run.fault or run.ended_early) or run.asked_to_end or (self.is_fixed and self.number == restarts):
            return False
        if run.fault and not self.is_fixed and self._futile == FUTILE:
            why = f"{FUTILE} generations in sequence ended without a new snapshot, so the job ends"
            log.fatal(why + snapshots.remedy())
            return False
        self.number += 1
        if self.is_fixed:
            log.warning(f"Restart {self.number} of {restarts}, from {snapshots.source()}")
        if not run.ended_early:
            self._expected = self.elastic.most
        return True

    def _ends_early(self, run: Run) -> bool:
        """Called once a second while ranks run: whether they end, since hosts can join."""
        if self.is_fixed:
            return False
        self.call()
        chosen, newest = self.largest(), self.launcher.snapshots.newest()
        if count(chosen) <= len(run.hosts):
            self._joins = None
        elif self._joins is None:
            self._joins = (newest,)
        elif self._joins != (newest,):
            self._expected = count(chosen)
            joins = ", ".join(host for host, _ in chosen if host not in self.at_work)
            log.info(f"{joins or 'More of the hosts'} can take part: this generation ends after {newest}")
            return True
        return False
