"""Update rules that scale each weight's step by the history of its gradients."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.errors import SolverError
from fcaffe.solvers.solver import Solver, register_solver


class WithoutMomentum(Solver):
    """Base of the rules that Caffe refuses to run with momentum."""

    def check(self) -> None:
        super().check()
        if self.param.momentum:
            raise SolverError(f"Momentum cannot be used with {self.param.type}; leave it out")


@register_solver("AdaGrad")
class AdaGradSolver(WithoutMomentum):
    """Duchi et al. 2011: h += g^2; w -= rate * g / (sqrt(h) + delta)."""

    histories = 1

    def update(self, place: slice, rate: float) -> None:
        (h,) = self.history
        self.engine.adagrad_update(self.data[place], self.diff[place], h[place], rate, self.param.delta)


@register_solver("RMSProp")
class RMSPropSolver(WithoutMomentum):
    """Tieleman and Hinton 2012: h a running mean of g^2 by rms_decay; w -= rate * g / (sqrt(h) + delta)."""

    histories = 1

    def check(self) -> None:
        super().check()
        if not 0 <= self.param.rms_decay < 1:
            raise SolverError(f"rms_decay should lie between 0 and 1 (1 excluded), not {self.param.rms_decay:g}")

    def update(self, place: slice, rate: float) -> None:
        (h,), p = self.history, self.param
        self.engine.rmsprop_update(self.data[place], self.diff[place], h[place], rate, p.rms_decay, p.delta)


@register_solver("AdaDelta")
class AdaDeltaSolver(Solver):
    """Zeiler 2012, with `momentum` as the decay of both running means."""

    histories = 2

    def update(self, place: slice, rate: float) -> None:
        (h, s), p = self.history, self.param
        self.engine.adadelta_update(self.data[place], self.diff[place], h[place], s[place], rate, p.momentum, p.delta)


@register_solver("Adam")
class AdamSolver(Solver):
    """Kingma and Ba 2015, `momentum` and `momentum2` being beta1 and beta2."""

    histories = 2

    def update(self, place: slice, rate: float) -> None:
        (a, b), p = self.history, self.param
        self.engine.adam_update(
            self.data[place],
            self.diff[place],
            a[place],
            b[place],
            rate * self._correction(),
            p.momentum,
            p.momentum2,
            p.delta,
        )

    def step_rate(self) -> float:
        return float(np.float32(self.rate)) * self._correction()

    def _correction(self) -> float:
        """For means that have started at 0."""
        t = self.iteration + 1
        beta1, beta2 = float(np.float32(self.param.momentum)), float(np.float32(self.param.momentum2))
        return math.sqrt(1 - beta2**t) / (1 - beta1**t)
