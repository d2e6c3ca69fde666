"""Starts the ranks of a job that was started alone, again after a fault if it may, and stays until they have ended.

Ranks of this host are its own children where the MPI allows that (`local_ranks.py`); else the machine's mpiexec starts
them. However a run ends, nothing of it is left on this host when the next one starts.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fcaffe import log
from fcaffe.parallel.guard import LAUNCHER, SECRET
from fcaffe.parallel.job import Job
from fcaffe.parallel.leftovers import JOB
from fcaffe.parallel.local_ranks import LocalRanks
from fcaffe.parallel.mpiexec import MpiexecRun, find_mpiexec, outside_environment
from fcaffe.parallel.started import LAUNCHED
from fcaffe.parallel.watchdog import DEFAULT_TIMEOUT

RETRY, PATIENCE = 5, 900  # seconds between attempts to start again, and of all of them: a host may need to come back


@dataclass(frozen=True)
class Plan:
    """What is to be started where. `hosts` (name, ranks) is empty for this host alone; `timeout` is in seconds."""

    workers: int
    hosts: tuple[tuple[str, int], ...] = ()
    mpi_args: str = ""
    timeout: float = DEFAULT_TIMEOUT
    restarts: int = 0


def launch(
    plan: Plan,
    words: Sequence[str],
    newest_snapshot: Callable[[], str | None] = lambda: None,
    stops: Collection[int] = (),
) -> int:
    """Run `fcaffe WORDS` on all workers; returns its exit code.

    After a fault it starts again, up to `plan.restarts` times, from `newest_snapshot()`, or, without one, as at first.
    A signal that asks for the end is no fault, whomever of the job it strikes; `stops` are those that a rank which
    trains takes so, and after which nothing is started again. Raises UsageError if there is no MPI.
    """
    mpiexec = find_mpiexec()
    environment = {
        **outside_environment(),
        LAUNCHED: str(plan.workers),
        LAUNCHER: str(os.getpid()),
        SECRET: secrets.token_hex(32),  # other users see command lines, but no environments
    }

    def run(*more: str) -> Job:
        program = [*_program(), *words, *more]
        own = {**environment, JOB: secrets.token_hex(8)}
        if mpiexec.speaks_pmi and not plan.hosts and not plan.mpi_args:
            told = f"{plan.workers} x {shlex.join(program)}"
            job = Job(told, lambda: LocalRanks(program, plan.workers, own), own[JOB], plan.timeout, stops)
        else:
            command = mpiexec.command(plan.workers, plan.hosts, plan.mpi_args, program, own)
            job = Job(shlex.join(command), lambda: MpiexecRun(command, own), own[JOB], plan.timeout, stops)
        job.run()
        return job

    job = run()
    for restart in range(1, plan.restarts + 1):
        if not job.fault or job.asked_to_end:
            break
        path = newest_snapshot()
        log.warning(
            f"{job.reason}Restart {restart} of {plan.restarts}, " + (f"from {path}" if path else "from the start")
        )
        more = [f"--snapshot={path}", "--weights="] if path else []
        deadline = time.monotonic() + PATIENCE
        job = run(*more)
        while job.fault and not (job.started or job.asked_to_end) and time.monotonic() < deadline:
            log.warning(f"{job.reason}The next attempt to start the ranks is in {RETRY} s")
            time.sleep(RETRY)
            job = run(*more)
    if job.reason:
        log.fatal(job.reason.rstrip())
    if job.unwritten is not None and not job.code:
        raise job.unwritten
    return job.code


def _program() -> list[str]:
    """How this command was called, so that a rank is called alike."""
    script = sys.argv[0]
    if os.path.basename(script) in ("fcaffe", "caffe") and os.path.isfile(script):
        return [sys.executable, os.path.abspath(script)]
    return [sys.executable, "-m", "fcaffe"]
