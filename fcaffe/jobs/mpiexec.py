"""Runs of a job's ranks by the mpiexec of mpi4py's MPI library, where no agent can start this MPI.

mpiexec passes on what the ranks print, and its standard input to rank 0, which gets the order and signals by it. It
says how the ranks ended only by its exit code.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.jobs.launcher import RANK, Launcher
from fcaffe.jobs.processes import JOB, clear
from fcaffe.jobs.ranks import TO_END
from fcaffe.jobs.started import FATAL, FAULT, TIMEOUT, host_name, outside_environment

# Open MPI passes only the variables on to other hosts that its command line names.
TO_OTHER_HOSTS = re.compile(r"FCAFFE_|PYTHON|OMP_NUM|OPENBLAS_|MKL_|GLOG_|(LD_LIBRARY_)?PATH$")
OF_OPEN_MPI = re.compile("Open ?MPI|OpenRTE|PRRTE")  # in what its mpiexec --version prints
# Debian calls each MPI's by its own name, and the plain name is that of one of them.
NAMES = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun")
# Exit codes of mpiexec after which the ranks have ended, or one has reported its error. FAULT says that one has
# reported a fault. After any other code, a rank or mpiexec itself has died.
NO_FAULT = (0, 1, FATAL, *(128 + number for number in TO_END))
LOADED = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().partition("\\n")[0])
try:
    with open("/proc/self/maps") as maps:
        print(next(line.split()[-1] for line in maps if "/libmpi" in line))
except (OSError, StopIteration):
    pass
"""


@dataclass(frozen=True)
class Mpiexec:
    """`speaks_pmi`: this MPI's library asks its launcher by PMI-1, so ranks of one host can do without an mpiexec."""

    path: str
    open_mpi: bool
    speaks_pmi: bool = False

    def command(
        self,
        workers: int,
        hosts: Sequence[tuple[str, int]],
        more: str,
        program: Sequence[str],
        environment: dict[str, str],
    ) -> list[str]:
        """To start `program` as this many ranks, on this host or on `hosts`; `more` are the user's own arguments."""
        if wrong := [name for name, _ in hosts if ":" in name or "@" in name]:
            raise UsageError(f"mpiexec takes neither users nor IPv6 addresses: replace {wrong[0]} by a host name")
        listed = ",".join(f"{name}:{count}" for name, count in hosts)
        words = [self.path, "-n", str(workers)]
        if self.open_mpi:
            # its defaults refuse more ranks than cores, and bind each rank and all its threads to one core
            words += ["--host", listed or f"localhost:{workers}", "--bind-to", "none"]
            words += [word for name in environment if TO_OTHER_HOSTS.match(name) for word in ("-x", name)]
        elif listed:
            words += ["-hosts", listed]
        return [*words, *shlex.split(more), *program]


def find_mpiexec() -> Mpiexec:
    """The mpiexec of mpi4py's MPI. Raises UsageError."""
    loaded = subprocess.run([sys.executable, "-c", LOADED], env=outside_environment(), capture_output=True, text=True)
    version, _, library = loaded.stdout.strip().partition("\n")
    if not version:
        words = loaded.stderr.strip().splitlines() or ["no answer"]
        raise UsageError(
            f"Workers are MPI ranks, but mpi4py cannot be used here ({words[-1]}): pip install 'fcaffe[mpi]' "
            "(or pip install mpi4py mpich); on a cluster, load its MPI module and pip install mpi4py"
        )
    open_mpi = "Open MPI" in version
    for folder in [*_beside(library), *os.environ.get("PATH", "").split(os.pathsep)]:
        for name in NAMES:
            candidate = shutil.which(name, path=folder)
            said = _version_of(candidate) if candidate else ""
            if candidate and bool(OF_OPEN_MPI.search(said)) is open_mpi:
                return Mpiexec(candidate, open_mpi, speaks_pmi=version.startswith("MPICH") and "HYDRA" in said)
    raise UsageError(
        f"There is no mpiexec of the MPI that mpi4py uses ({version.strip()}), neither beside it nor in PATH (as "
        f"{', '.join(NAMES)}): add its folder to PATH"
    )


def _beside(library: str) -> list[str]:
    """The bin folders of a library's prefix: it may be in lib, lib64, lib/openmpi ..."""
    folder = os.path.dirname(library)
    return [os.path.normpath(os.path.join(folder, up, "bin")) for up in ("..", "../..", "../../..")] if library else []


def _version_of(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], env=outside_environment(), capture_output=True, text=True).stdout


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
    member = launcher.run_mpiexec(command, environment)
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
