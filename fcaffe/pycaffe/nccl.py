"""pycaffe's NCCL, for scripts that were written to train on several GPUs."""

from __future__ import annotations

import os

from fcaffe.errors import UsageError
from fcaffe.pycaffe import session
from fcaffe.pycaffe.solver import Solver
from fcaffe.solvers import Observer


class NCCL(Observer):
    """NCCL of a single process, so sums and broadcasts change nothing. `fcaffe train` trains on several GPUs.

    Raises UsageError if `set_solver_count` has announced several processes.
    """

    def __init__(self, solver: Solver, uid: bytes | str) -> None:
        count = session.solver_count()
        if count > 1:
            raise UsageError(
                f"NCCL: set_solver_count({count}) says that {count} processes of a script train together, and fcaffe "
                f"trains one in each script; `fcaffe train --solver ... --workers {count}`, or `--gpu 0,1,...`, "
                "trains on several"
            )

    @staticmethod
    def new_uid() -> bytes:
        """Return a random identifier of a training."""
        return os.urandom(128)

    def bcast(self) -> None:
        """Broadcast the weights: nothing to do."""

    def __call__(self, layer: int) -> None:
        """Sum the gradients of this layer, as a hook of a net: nothing to do."""
