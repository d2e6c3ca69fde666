from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.parallel.reductions.reduction import Reduction, register


@register("mpi")
class Mpi(Reduction):
    """MPI_Allreduce: what the MPI library makes of it, its way of waiting included. Its messages cannot be counted."""

    counted = False

    def add_up(self, buffer: np.ndarray) -> None:
        self.comm.Allreduce(MPI.IN_PLACE, buffer)
