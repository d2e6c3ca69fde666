"""Direct: sums of GPU buffers by an MPI that reads the memory of GPUs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.gpu.reduction import ByAnother
from fcaffe.parallel.reductions.reduction import create_on_host, register

IN_HOST_MEMORY = ("auto", "hierarchical", "shared")  # sum in memory of the host that ranks share


@register("direct")
class Direct(ByAnother):
    """Another reduction whose messages a CUDA-aware MPI reads and writes in the device's memory.

    Buffers are added there too. It crashes with an MPI that is not CUDA-aware.
    """

    wraps_another = True

    def __init__(self, comm: MPI.Intracomm, xp: Any, another: str = "ring") -> None:
        self.name = f"{self.name}:{another}"
        if another.partition(":")[0] in IN_HOST_MEMORY:
            raise UsageError(f"reduction {self.name}: {another} needs memory of the host; use staged:{another}")
        super().__init__(
            comm, xp, create_on_host(another, comm, xp=xp, before_messages=lambda: self.stream.synchronize())
        )

    def add_up(self, buffer: Array) -> None:
        with self.stream:
            self.stream.synchronize()
            self.another.sum(buffer)


def cuda_aware() -> bool:
    """Whether this MPI says that it reads a device's memory. Some say what they were built for."""
    for variable in ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"):  # Cray's, MVAPICH's; 0 unless it is set
        if variable in os.environ:
            return os.environ[variable] == "1"
    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (AttributeError, OSError):
        return False
    return query() == 1
