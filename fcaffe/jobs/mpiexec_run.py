"""One run of a job's ranks by mpiexec, whose MPI no agent can start.

mpiexec passes on what the ranks print, and its standard input to rank 0, which gets the order and signals by it. It
says how the ranks ended only by its exit code.
"""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass

from fcaffe import log
from fcaffe.jobs.launcher import RANK, Launcher
from fcaffe.jobs.mpiexec import Mpiexec
from fcaffe.jobs.processes import JOB, clear
from fcaffe.jobs.ranks import TO_END
from fcaffe.jobs.started import FATAL, FAULT, TIMEOUT, host_name

# Exit codes of mpiexec after which the ranks have ended, or one has reported its error. FAULT says that one has
# reported a fault. After any other code, a rank or mpiexec itself has died.
NO_FAULT = (0, 1, FATAL, *(128 + number for number in TO_END))


@dataclass
class MpiexecRun:
    """The attributes of a Run that say how it ended."""

    ready: bool = True
    fault: bool = False
    asked_to_end: bool = False
    code: int = FATAL


def run_mpiexec(launcher: Launcher, mpiexec: Mpiexec, path: str | None, last: bool) -> MpiexecRun:
    """Run the ranks, from the state `path`; after the `last` run a message says how to go on."""
    plan = launcher.plan
    environment = {**launcher.environment(plan.workers), TIMEOUT: f"{plan.timeout:g}"}
    hosts = plan.hosts or ((host_name(), plan.workers),)
    command = mpiexec.command(plan.workers, plan.hosts, plan.mpi_args, RANK, environment)
    log.info("Starting the ranks: " + shlex.join(command))
    run = MpiexecRun()
    member = launcher.crew.run_mpiexec(command, environment)
    member.link.send(**launcher.order(path))
    interrupted = 0

    def relay(number: int) -> None:
        nonlocal interrupted
        if number == interrupted:
            member.kill()
        interrupted = number if number == signal.SIGTERM else interrupted
        run.asked_to_end |= number in launcher.stops
        member.link.send(signal=number)

    launcher.follow([member], relay)
    clear(environment[JOB])
    code = member.process.returncode
    run.fault = code not in NO_FAULT and not interrupted
    run.code = 128 + interrupted if interrupted and code else code if code in NO_FAULT else FATAL
    if run.fault and code != FAULT:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        remedy = launcher.snapshots.remedy() if last else ""
        log.fatal(
            f"{member} {how}: a rank on {', '.join(dict.fromkeys(h for h, _ in hosts))} died, or it did; what it "
            f"said stands above{remedy}"
        )
    return run
