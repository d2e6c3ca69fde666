"""pycaffe's NCCL, for scripts that were written to train on several GPUs."""

from __future__ import annotations

import os

from fcaffe.errors import UsageError
from fcaffe.pycaffe import session
from fcaffe.pycaffe.solver import Solver
from fcaffe.solvers import Observer


class NCCL(Observer):
    """Adds up the gradients of the processes that `set_solver_count` has announced, of which there may be but one here.

    So its sums and broadcasts are what a single process has already. Several train by `fcaffe train`.
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
        """What the processes of one training recognise one another by."""
        return os.urandom(128)

    def bcast(self) -> None:
        """Give all processes the weights of the first."""

    def __call__(self, layer: int) -> None:
        """As a hook of a net: add up the gradients of this layer, as soon as backward has made them."""
