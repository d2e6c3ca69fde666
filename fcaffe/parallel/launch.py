"""Starts the ranks of a job without a launcher of MPI, restarts them after a fault, and waits for their end.

If the MPI is MPICH, an agent on each host starts the ranks there (`local_ranks.py`). This process starts the agents, by
ssh on other hosts, and exchanges the addresses of ranks on different hosts when MPI starts. With another MPI its
mpiexec starts the ranks. However a run ends, nothing of it is left on this host when the next one starts.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel.elastic import run_generations
from fcaffe.parallel.job import Job
from fcaffe.parallel.launcher import Launcher, resuming
from fcaffe.parallel.mpiexec import find_mpiexec
from fcaffe.parallel.placement import Plan

# Seconds until the second attempt to start again, at most between two, and of all: a host may need to come back.
RETRY, LONGEST_RETRY, PATIENCE = 5, 60, 900


def launch(
    plan: Plan,
    words: Sequence[str],
    newest_snapshot: Callable[[], str | None] = lambda: None,
    stops: Collection[int] = (),
) -> int:
    """Run `fcaffe WORDS` on all workers; returns its exit code.

    After a fault it starts again, up to `plan.restarts` times, from `newest_snapshot()` or else from the start. The end
    of a job by a signal is no fault, whichever process gets the signal. After one of the signals `stops`, which end a
    training, nothing is started again. Raises UsageError if there is no MPI, or no Linux.
    """
    if sys.platform != "linux":
        raise UsageError("Several workers and --restarts need Linux: train with one worker, without these flags")
    mpiexec = find_mpiexec() if plan.workers > 1 else None
    launcher = Launcher(plan, [*_program(), *words], stops)
    if plan.elastic:
        if plan.mpi_args or (mpiexec and not mpiexec.speaks_pmi):
            raise UsageError("--elastic needs an MPICH whose ranks fcaffe starts itself: leave out --mpi-args")
        code = run_generations(launcher, plan.elastic, newest_snapshot)
    elif mpiexec is None or (mpiexec.speaks_pmi and not plan.mpi_args):
        code = _restarting(launcher.run_agents, plan.restarts, newest_snapshot)
    else:
        code = _restarting(functools.partial(launcher.run_mpiexec, mpiexec), plan.restarts, newest_snapshot)
    if launcher.output.unwritten is not None and not code:
        raise launcher.output.unwritten
    return code


def _restarting(run: Callable[..., Job], restarts: int, newest_snapshot: Callable[[], str | None]) -> int:
    job = run()
    for restart in range(1, restarts + 1):
        if not job.fault or job.asked_to_end:
            break
        path = newest_snapshot()
        log.warning(f"Restart {restart} of {restarts}, " + (f"from {path}" if path else "from the start"))
        more = resuming(path)
        deadline, pause = time.monotonic() + PATIENCE, RETRY
        job = run(*more)
        while job.fault and not (job.started or job.asked_to_end) and time.monotonic() < deadline:
            left = f"attempts end after {PATIENCE // 60} minutes"
            log.warning(f"The next attempt to start the ranks is in {pause} s; {left}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY)
            job = run(*more)
    return job.code


def _program() -> list[str]:
    """How this command was called, so that a rank is called alike."""
    script = sys.argv[0]
    if os.path.basename(script) in ("fcaffe", "caffe") and os.path.isfile(script):
        return [sys.executable, os.path.abspath(script)]
    return [sys.executable, "-m", "fcaffe"]
