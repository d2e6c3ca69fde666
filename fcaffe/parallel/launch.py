"""Starts the ranks of a job that was started alone, again after a fault if it may, and stays until they have ended.

An agent on this host starts its ranks where the MPI allows that (`local_ranks.py`); else the machine's mpiexec starts
them. However a run ends, nothing of it is left on this host when the next one starts.
"""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel import agent
from fcaffe.parallel.job import Job
from fcaffe.parallel.mpiexec import find_mpiexec, outside_environment
from fcaffe.parallel.processes import JOB, LAUNCHER, dies_with
from fcaffe.parallel.started import LAUNCHED, host_name
from fcaffe.parallel.watchdog import DEFAULT_TIMEOUT, SECRET

# Seconds until the second attempt to start again, at most between two, and of all: a host may need to come back.
RETRY, LONGEST_RETRY, PATIENCE = 5, 60, 900


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
    trains takes so, and after which nothing is started again. Raises UsageError if there is no MPI, or no Linux.
    """
    if sys.platform != "linux":
        raise UsageError("Several workers and --restarts need Linux: train with one worker, without these flags")
    mpiexec = find_mpiexec() if plan.workers > 1 else None
    environment = {
        **outside_environment(),
        LAUNCHED: str(plan.workers),
        LAUNCHER: str(os.getpid()),
        SECRET: secrets.token_hex(32),  # other users see command lines, but no environments
    }

    def run(*more: str) -> Job:
        program = [*_program(), *words, *more]
        own = {**environment, JOB: secrets.token_hex(8)}
        if mpiexec is None or (mpiexec.speaks_pmi and not plan.hosts and not plan.mpi_args):
            told, by_agent = f"{plan.workers} x {shlex.join(program)}", True
            start = functools.partial(_start_agent, plan, program, own)
        else:
            command = mpiexec.command(plan.workers, plan.hosts, plan.mpi_args, program, own)
            told, by_agent = shlex.join(command), False
            start = functools.partial(_start_mpiexec, command, own)
        job = Job(told, start, by_agent, own[JOB], plan.timeout, stops)
        job.run()
        return job

    job = run()
    for restart in range(1, plan.restarts + 1):
        if not job.fault or job.asked_to_end:
            break
        path = newest_snapshot()
        log.warning(f"Restart {restart} of {plan.restarts}, " + (f"from {path}" if path else "from the start"))
        more = [f"--snapshot={path}", "--weights="] if path else []
        deadline, pause = time.monotonic() + PATIENCE, RETRY
        job = run(*more)
        while job.fault and not (job.started or job.asked_to_end) and time.monotonic() < deadline:
            left = f"attempts end after {PATIENCE // 60} minutes"
            log.warning(f"The next attempt to start the ranks is in {pause} s; {left}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY)
            job = run(*more)
    if job.unwritten is not None and not job.code:
        raise job.unwritten
    return job.code


def _start_agent(plan: Plan, program: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """The agent of this host, which starts the ranks as its children. It outlives this process, to say so and end them,
    where this process writes its errors."""
    stderr = os.dup(2)
    setup = {
        **{"program": program, "workers": plan.workers, "environment": environment, "host": host_name()},
        **{"timeout": plan.timeout, "folder": os.getcwd(), "stderr": stderr},
    }
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    try:
        return agent.spawn(setup, [stderr], environment, **streams)
    finally:
        os.close(stderr)


def _start_mpiexec(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # the terminal's Ctrl-C goes to the launcher alone
        preexec_fn=dies_with(os.getpid()),
    )


def _program() -> list[str]:
    """How this command was called, so that a rank is called alike."""
    script = sys.argv[0]
    if os.path.basename(script) in ("fcaffe", "caffe") and os.path.isfile(script):
        return [sys.executable, os.path.abspath(script)]
    return [sys.executable, "-m", "fcaffe"]
