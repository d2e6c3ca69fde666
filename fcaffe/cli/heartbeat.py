"""How the watchdog of a rank hears of its training."""

from __future__ import annotations

from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers import Observer, Solver


class Heartbeat(Observer):
    """Lets the watchdog know what the solver does, and in which iteration."""

    looks = False

    def __init__(self, solver: Solver, watchdog: Watchdog) -> None:
        self.solver = solver
        self.watchdog = watchdog

    def iteration_begins(self) -> None:
        self.watchdog.beat("forward and backward", self.solver.iteration)

    def gradients_ready(self) -> None:
        self.watchdog.beat("the update", self.solver.iteration)

    def iteration_ends(self, loss: float, rate: float) -> None:
        self.watchdog.beat("a snapshot or a test", self.solver.iteration)

    def test_batch_begins(self) -> None:
        self.watchdog.beat("a test", self.solver.iteration)
