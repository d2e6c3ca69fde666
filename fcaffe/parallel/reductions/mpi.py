from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.parallel.reductions.reduction import Reduction, register


@register("mpi")
class Mpi(Reduction):
    """MPI_Allreduce, as the MPI library implements it and waits for it. Its messages cannot be counted."""

    counted = False

    def add_up(self, buffer: np.ndarray) -> None:
        self.comm.Allreduce(MPI.IN_PLACE, buffer)


@register("null")
class Null(Reduction):
    """No communication: each rank has its own gradients. For measuring the rest of a training."""

    def add_up(self, buffer: np.ndarray) -> None:
        pass
