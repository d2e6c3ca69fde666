"""The mpiexec that belongs to mpi4py's MPI library, how it is told what to start where, and one run of it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from fcaffe.errors import UsageError
from fcaffe.parallel.local_ranks import dies_with
from fcaffe.threads import environment_of_others

# Set by mpiexec for its ranks; an mpiexec that finds them believes that it is one.
OF_A_RANK = re.compile(
    r"PMI_(RANK|SIZE|FD|PORT|ID|HOSTNAME)$|PMIX_(RANK|NAMESPACE|HOSTNAME|SERVER_)|MPI_LOCAL|HYDI_|"
    r"OMPI_COMM_WORLD_|MV2_COMM_WORLD_"
)
TO_OTHER_HOSTS = re.compile(
    r"FCAFFE_|PYTHON|OMP_NUM|OPENBLAS_|MKL_|GLOG_|(LD_LIBRARY_)?PATH$"
)  # Open MPI passes none on
OF_OPEN_MPI = re.compile("Open ?MPI|OpenRTE|PRRTE")  # what its mpiexec says of itself
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
        places = ",".join(f"{name}:{count}" for name, count in hosts)
        words = [self.path, "-n", str(workers)]
        if self.open_mpi:
            # its defaults refuse more ranks than cores, and bind each rank and all its threads to one core
            words += ["--host", places or f"localhost:{workers}", "--bind-to", "none"]
            words += [word for name in environment if TO_OTHER_HOSTS.match(name) for word in ("-x", name)]
        elif places:
            words += ["-hosts", places]
        return [*words, *shlex.split(more), *program]


def outside_environment() -> dict[str, str]:
    """Ours, without what says that we are a rank."""
    return {name: value for name, value in environment_of_others().items() if not OF_A_RANK.match(name)}


def find_mpiexec() -> Mpiexec:
    """Raises UsageError."""
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
        candidate = shutil.which("mpiexec", path=folder)
        if candidate is None:
            continue
        said = _version_of(candidate)
        if bool(OF_OPEN_MPI.search(said)) is open_mpi:
            return Mpiexec(candidate, open_mpi, speaks_pmi=version.startswith("MPICH") and "HYDRA" in said)
    raise UsageError(
        f"There is no mpiexec of the MPI that mpi4py uses ({version.strip()}), neither beside it nor in PATH: add its "
        "folder to PATH"
    )


def _beside(library: str) -> list[str]:
    """The bin folders of a library's prefix: it may be in lib, lib64, lib/openmpi ..."""
    folder = os.path.dirname(library)
    return [os.path.normpath(os.path.join(folder, up, "bin")) for up in ("..", "../..", "../../..")] if library else []


def _version_of(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], env=outside_environment(), capture_output=True, text=True).stdout


class MpiexecRun:
    """One run of mpiexec; see LocalRanks, which has the same parts."""

    first: int | None = None  # which rank ended first is not known
    killed_by = 0

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C goes to the launcher alone
            preexec_fn=dies_with(os.getpid()),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        self.stderr: IO[bytes] = self._process.stderr

    def wait(self, seconds: float) -> int | None:
        """mpiexec's exit code, once it has ended; None if that takes longer than so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """mpiexec, and what it has started here; on other hosts MPI's processes notice that it has gone."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stdin.close()
