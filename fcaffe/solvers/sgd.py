"""Stochastic gradient descent, with Polyak's or Nesterov's momentum."""

from __future__ import annotations

from fcaffe.solvers.solver import Solver, register_solver


@register_solver("SGD")
class SGDSolver(Solver):
    """h = momentum * h + rate * g; w -= h.

    The rate is folded into the history, as in Caffe: changing it in mid-run leaves the momentum gathered so far alone.
    """

    histories = 1
    lends_momentum = True

    def decay_and_update(self, place: slice, decay: float, rate: float) -> None:
        """Gradients that come with their momentum from the exchange are applied as they are; the decay gets its own."""
        if not self.exchange.takes_momentum:
            if self.param.regularization_type == "L2":
                self.update(place, rate, decay)
            else:
                super().decay_and_update(place, decay, rate)
            return
        gradients = self.diff[place].copy()
        self.diff[place] = 0
        super().decay_and_update(place, decay, rate)
        gradients *= self.engine.xp.float32(rate)
        self.data[place] -= gradients
        self.diff[place] += gradients  # what the weights were lowered by, as after any update

    def update(self, place: slice, rate: float, decay: float = 0.0) -> None:
        (h,) = self.history
        self.engine.sgd_update(self.data[place], self.diff[place], h[place], rate, self.param.momentum, decay)


@register_solver("Nesterov")
class NesterovSolver(Solver):
    """h' = momentum * h + rate * g; w -= (1 + momentum) * h' - momentum * h."""

    histories = 1

    def update(self, place: slice, rate: float) -> None:
        (h,) = self.history
        self.engine.nesterov_update(self.data[place], self.diff[place], h[place], rate, self.param.momentum)
