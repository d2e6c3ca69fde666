"""What belongs to one iteration: its loss, which may come later, and the gradients on their way to other workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fcaffe.solvers.solver import Solver


class Handover:
    """Gives the exchange what is final of the flat gradients, as backward comes down through the layers."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    def begin(self) -> None:
        self._solver.exchange.begin(self._solver.diff)

    def ready(self, layer: int) -> None:
        if self._solver.workers.size > 1:
            self._solver.engine.settle_gradients()
        self._solver.exchange.ready(self._solver._final_from[layer])

    def finish(self) -> None:
        self._solver.exchange.finish()


@dataclass
class Iteration:
    """One that was started: what gives its loss, what that smoothed to, its update's rate."""

    loss: Callable[[], np.float32]
    smoothed: float | None = None
    rate: float = 0.0


def known(loss: np.float32) -> Callable[[], np.float32]:
    """What gives a loss that is there already."""
    return lambda: loss
