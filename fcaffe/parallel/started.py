"""How this process was started: by which launcher, as which of how many ranks, and on which host."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

LAUNCHED = "FCAFFE_LAUNCHED"  # set by `launch.py` to the number of ranks
# Set by a rank for its children, which inherit the launcher's variables, to the process number of the rank.
RANK_PROCESS = "FCAFFE_RANK_PROCESS"

# What launchers set: their name, the variables of a rank and of the number of ranks. The first that is there counts:
# an mpiexec within a batch job leaves the batch system's own variables as they are.
LAUNCHERS = [
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("MVAPICH's launcher", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    ("mpiexec", "PMI_RANK", ("PMI_SIZE",)),
    ("PALS", "PALS_RANKID", ("PALS_SIZE",)),
    ("PMIx", "PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",)),
]
HOST_NAMES = ("PMI_HOSTNAME", "PMIX_HOSTNAME", "SLURMD_NODENAME")
OF_HYDRA = ("MPI_LOCALNRANKS", "HYDI_CONTROL_FD")  # by which a rank of MPICH's mpiexec differs from one of srun's
REMEDY = (
    "start it with this MPI's own mpiexec, or build mpi4py for that launcher's (pip install --no-binary mpi4py mpi4py)"
)
SLURM_REMEDY = (
    "start it with srun --mpi=pmi2 if this MPI is MPICH, with srun --mpi=pmix if it is Open MPI (srun --mpi=list shows "
    "what this Slurm has), or with this MPI's own mpiexec"
)
TURN = 1.0  # seconds that rank 0 has to say, before others do, what is wrong with all


class Start(NamedTuple):
    """What the environment says of how this process was started."""

    launcher: str
    size_variable: str
    rank: int
    size: int  # 0 if unknown

    @property
    def remedy(self) -> str:
        return SLURM_REMEDY if "Slurm" in self.launcher or self.size_variable.startswith("SLURM") else REMEDY

    def __str__(self) -> str:
        if not self.size:
            return f"{self.launcher} started this process as rank {self.rank}"
        said = f"{self.launcher} ({self.size_variable}={self.size})"
        return f"{said} started this process as rank {self.rank} of {self.size}"


def started_as(environment: Mapping[str, str] | None = None) -> Start | None:
    """How a launcher started this process as one of several ranks; None if it was started alone.

    A shell in a Slurm allocation has SLURM_NTASKS, and a batch script SLURM_PROCID as well, but only a task that srun
    has started has SLURM_STEP_NUM_TASKS. A process that a rank has started, such as `fcaffe test` in a layer of user
    code, has the rank's environment and is no rank.
    """
    environment = os.environ if environment is None else environment
    if is_child_of_rank(environment):
        return None
    for launcher, rank_variable, size_variables in LAUNCHERS:
        rank, size = _number(environment, (rank_variable,)), _number(environment, size_variables)
        if launcher in ("PMIx", "Slurm"):
            if rank is None or (launcher == "Slurm" and size is None):
                continue
        elif rank is None and size is None:
            continue
        if "SLURM_STEP_NUM_TASKS" in environment and not any(name in environment for name in OF_HYDRA):
            launcher = {"mpiexec": "Slurm's srun", "PMIx": "Slurm's srun"}.get(launcher, launcher)
        if LAUNCHED in environment:
            size = _number(environment, (LAUNCHED,))
        if size is not None and size[1] <= 1:
            return None
        return Start(launcher, size[0] if size else "", rank[1] if rank else 0, size[1] if size else 0)
    if int(environment.get(LAUNCHED, "1")) > 1:
        return Start("fcaffe", LAUNCHED, 0, int(environment[LAUNCHED]))
    return None


def is_child_of_rank(environment: Mapping[str, str]) -> bool:
    return environment.get(RANK_PROCESS, str(os.getpid())) != str(os.getpid())


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, int] | None:
    return next(((name, int(environment[name])) for name in names if environment.get(name, "").isdecimal()), None)


def host_name() -> str:
    """As the launcher calls this host."""
    return next((os.environ[name] for name in HOST_NAMES if os.environ.get(name)), "") or socket.gethostname()


def wait_for_turn(rank: int) -> None:
    """What is wrong with all ranks is told by rank 0, who then ends them; the others speak if they still live."""
    if rank > 0:
        time.sleep(TURN + min(rank, 100) / 50)
