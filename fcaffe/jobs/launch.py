"""Starts the ranks of a job without a launcher of MPI, restarts them after a fault, and waits for their end.

An agent on each host starts the ranks there (`agent.py`). This process starts the agents (`launcher.py`), and exchanges
the addresses of ranks on different hosts when MPI starts (`run.py`). However a run ends, nothing of it is left on this
host when the next one starts.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import FrameType

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.jobs.elastic import run_generations
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Plan, Snapshots
from fcaffe.jobs.launcher import Launcher
from fcaffe.jobs.mpi_start import require_mpich
from fcaffe.jobs.ranks import TO_END
from fcaffe.jobs.run import Run
from fcaffe.jobs.started import host_name

# Seconds until the second attempt to start again, at most between two, and of all: a host may need to come back.
RETRY, LONGEST_RETRY, PATIENCE = 5, 60, 900


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Within the `with`, `handler` handles the signals that ask for the end."""
    before = {number: signal.signal(number, handler) for number in TO_END}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def launch(
    plan: Plan,
    order: Callable[[str | None], Message],
    stops: Collection[int] = (),
    snapshots: Snapshots | None = None,
) -> int:
    """Run the ranks of the plan, each with `order(state to resume from)`; returns the exit code of the job.

    After a fault it starts again, up to `plan.restarts` times, from the newest of `snapshots`, or as it began. The end
    of a job by a signal is no fault, whichever process gets the signal. After one of the signals `stops`, which end a
    training, nothing is started again. Raises UsageError if there is no MPI, or no Linux.
    """
    if sys.platform != "linux":
        raise UsageError("Several workers and --restarts need Linux: train with one worker, without these flags")
    if plan.workers > 1:
        require_mpich(plan.workers)
    launcher = Launcher(plan, order, stops, snapshots)
    with _signals_to(launcher.take_signal):
        try:
            if plan.elastic:
                code = run_generations(launcher, plan.elastic)
            else:
                code = _restarting(launcher, partial(_run_agents, launcher))
        finally:
            launcher.dismiss()
    launcher.output.flush(patience=5)
    if launcher.output.unwritten is not None and not code:
        raise launcher.output.unwritten
    return code


def _run_agents(launcher: Launcher, path: str | None, last: bool) -> Run:
    hosts = launcher.plan.hosts or ((host_name(), launcher.plan.workers),)
    return Run(launcher, hosts, [launcher.call(host) for host, _ in hosts], path, last).follow()


def _restarting(launcher: Launcher, run: Callable[[str | None, bool], Run]) -> int:
    """Run the ranks, and start them again after faults. A host that cannot be reached at the first start ends the job;
    later it has some minutes to come back."""
    restarts = launcher.plan.restarts
    job = run(None, restarts == 0)
    for restart in range(1, restarts + 1):
        if not job.fault or job.asked_to_end or (restart == 1 and not job.ready):
            break
        log.warning(f"Restart {restart} of {restarts}, from {launcher.snapshots.source()}")
        deadline, pause = time.monotonic() + PATIENCE, RETRY
        job = run(launcher.snapshots.newest(), restart == restarts)
        while job.fault and not (job.ready or job.asked_to_end) and time.monotonic() < deadline:
            left = f"attempts end after {PATIENCE // 60} minutes"
            log.warning(f"The next attempt to start the ranks is in {pause} s; {left}")
            launcher.rest(pause)
            pause = min(2 * pause, LONGEST_RETRY)
            job = run(launcher.snapshots.newest(), restart == restarts)
    return job.code
