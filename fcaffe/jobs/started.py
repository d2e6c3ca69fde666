"""How this process was started: by which launcher, as which of how many ranks, and on which host."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from fcaffe.threads import environment_of_others

# Set by a rank for its children, which inherit the launcher's variables, to the process number of the rank.
RANK_PROCESS = "FCAFFE_RANK_PROCESS"

# Launchers with their variables for the rank and the number of ranks. The first whose variables are set counts: within
# a batch job mpiexec leaves the variables of the batch system as they are.
LAUNCHERS = [
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH's launcher", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("mpiexec or srun", "PMI_RANK", "PMI_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_SIZE"),
    ("mpiexec or srun", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
]
# Set by mpiexec for its ranks; an mpiexec that finds them believes that it is one.
OF_A_RANK = re.compile(
    r"PMI_(RANK|SIZE|FD|PORT|ID|HOSTNAME)$|PMIX_(RANK|NAMESPACE|HOSTNAME|SERVER_)|MPI_LOCAL|HYDI_|"
    r"OMPI_COMM_WORLD_|MV2_COMM_WORLD_|FCAFFE_RANK_PROCESS$"
)
HOST_NAMES = ("PMI_HOSTNAME", "PMIX_HOSTNAME", "SLURMD_NODENAME")
REMEDY = (
    "start it with this MPI's own mpiexec; under Slurm with srun --mpi=pmi2 if this MPI is MPICH, with srun --mpi=pmix "
    "if it is Open MPI (srun --mpi=list shows what this Slurm has); or build mpi4py for that launcher's MPI "
    "(pip install --no-binary mpi4py mpi4py)"
)
FATAL = 134  # exit code after an error or a fault: what a shell sees of Caffe, which aborts
TURN = 1.0  # seconds for which the others wait for rank 0 to report an error that all have


class Start(NamedTuple):
    """The launcher of this process and its rank, from the environment."""

    launcher: str
    size_variable: str
    rank: int
    size: int  # 0 if unknown

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
    for launcher, rank_variable, size_variable in LAUNCHERS:
        rank, size = _number(environment, rank_variable), _number(environment, size_variable)
        if rank is None or (launcher == "Slurm" and size is None):
            continue
        return Start(launcher, size_variable, rank, size or 0) if size != 1 else None
    return None


def is_child_of_rank(environment: Mapping[str, str]) -> bool:
    return environment.get(RANK_PROCESS, str(os.getpid())) != str(os.getpid())


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


def host_name() -> str:
    """The launcher's name of this host."""
    return next((os.environ[name] for name in HOST_NAMES if os.environ.get(name)), "") or socket.gethostname()


def outside_environment() -> dict[str, str]:
    """The environment of this process, without the variables that mark it as a rank."""
    return {name: value for name, value in environment_of_others().items() if not OF_A_RANK.match(name)}


def wait_for_turn(rank: int) -> None:
    """Wait before a rank reports an error. If all ranks have it, rank 0 reports it first and ends the others."""
    if rank > 0:
        time.sleep(TURN + min(rank, 100) / 50)
