"""Starts the ranks of a job, again and again after faults, and waits for their end.

An agent on each host starts the ranks there (`agent.py`). This process starts the agents (`launcher.py`), and exchanges
the addresses of ranks on different hosts when MPI starts (`run.py`). However a run ends, nothing of it is left on this
host when the next one starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from fcaffe.errors import UsageError
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import Plan, Snapshots
from fcaffe.jobs.launcher import Launcher
from fcaffe.jobs.mpi_start import load_mpi
from fcaffe.jobs.pool import Pool
from fcaffe.jobs.started import Start


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
        code = _run(Pool(launcher))
    if launcher.output.unwritten is not None and not code:
        raise launcher.output.unwritten
    return code


def _run(pool: Pool) -> int:
    """Start run after run, on the hosts that the pool chooses; returns the exit code."""
    while chosen := pool.choose():
        run = pool.start(chosen).follow()
        if not pool.goes_on(run):
            return run.code
    return 128 + pool.launcher.signals[0]
