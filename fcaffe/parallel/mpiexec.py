"""The mpiexec that belongs to mpi4py's MPI library, and how it is told what to start where."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fcaffe.errors import UsageError
from fcaffe.threads import environment_of_others

# Set by mpiexec for its ranks; an mpiexec that finds them believes that it is one.
OF_A_RANK = re.compile(
    r"PMI_(RANK|SIZE|FD|PORT|ID|HOSTNAME)$|PMIX_(RANK|NAMESPACE|HOSTNAME|SERVER_)|MPI_LOCAL|HYDI_|"
    r"OMPI_COMM_WORLD_|MV2_COMM_WORLD_"
)
TO_OTHER_HOSTS = re.compile(
    r"FCAFFE_|PYTHON|OMP_NUM|OPENBLAS_|MKL_|GLOG_|(LD_LIBRARY_)?PATH$"
)  # Open MPI passes none on
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
    path: str
    open_mpi: bool

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
            f"Workers are MPI ranks, but mpi4py cannot be used here ({words[-1]}): pip install mpi4py mpich; on a "
            "cluster, load its MPI module and pip install mpi4py"
        )
    open_mpi = "Open MPI" in version
    for folder in [*_beside(library), *os.environ.get("PATH", "").split(os.pathsep)]:
        candidate = shutil.which("mpiexec", path=folder)
        if candidate is not None and _is_open_mpi(candidate) is open_mpi:
            return Mpiexec(candidate, open_mpi)
    raise UsageError(
        f"There is no mpiexec of the MPI that mpi4py uses ({version.strip()}), neither beside it nor in PATH: add its "
        "folder to PATH"
    )


def _beside(library: str) -> list[str]:
    """The bin folders of a library's prefix: it may be in lib, lib64, lib/openmpi ..."""
    folder = os.path.dirname(library)
    return [os.path.normpath(os.path.join(folder, up, "bin")) for up in ("..", "../..", "../../..")] if library else []


def _is_open_mpi(mpiexec: str) -> bool:
    said = subprocess.run([mpiexec, "--version"], env=outside_environment(), capture_output=True, text=True).stdout
    return bool(re.search("Open ?MPI|OpenRTE|PRRTE", said))
