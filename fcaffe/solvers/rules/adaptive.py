"""Update rules that scale each weight's step by the history of its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fcaffe.errors import SolverError
from fcaffe.net.blob import Array
from fcaffe.solvers.rules.rule import Rule, register_rule


class ByRootOfHistory(Rule):
    """Base of the rules with w -= rate * g / (sqrt(h) + delta), which Caffe refuses to run with momentum."""

    all_at_once = True

    def check(self) -> None:
        if self.param.momentum:
            raise SolverError(f"Momentum cannot be used with {self.param.type}; leave it out")

    def add(self, h: Array, squares: Array) -> None:
        """Add the squares of gradients to the history."""
        h += squares

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        h = histories[0]
        self.add(h, g * g)
        g /= self.xp.sqrt(h) + self.xp.float32(self.param.delta)
        g *= self.xp.float32(rate)
        w -= g


@register_rule("AdaGrad")
class AdaGrad(ByRootOfHistory):
    """Duchi et al. 2011: h += g^2."""


@register_rule("RMSProp")
class RMSProp(ByRootOfHistory):
    """Tieleman and Hinton 2012: h a running mean of g^2 by rms_decay."""

    def check(self) -> None:
        super().check()
        if not 0 <= self.param.rms_decay < 1:
            raise SolverError(f"rms_decay should lie between 0 and 1 (1 excluded), not {self.param.rms_decay:g}")

    def add(self, h: Array, squares: Array) -> None:
        _average(h, squares, self.param.rms_decay)


@register_rule("AdaDelta")
class AdaDelta(Rule):
    """Zeiler 2012: h, s are running means, by `momentum`, of g^2 and of u^2; w -= rate * u.

    The step is u = g * sqrt((s + delta) / (h + delta)).
    """

    histories = 2
    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        (h, s), momentum, delta = histories, self.param.momentum, self.xp.float32(self.param.delta)
        _average(h, g * g, momentum)
        g *= self.xp.sqrt((s + delta) / (h + delta))
        _average(s, g * g, momentum)
        g *= self.xp.float32(rate)
        w -= g


@register_rule("Adam")
class Adam(Rule):
    """Kingma and Ba 2015: a, b are running means, by `momentum` and `momentum2`, of g and g^2.

    w -= rate * a / (sqrt(b) + delta), where the rate includes the `correction`.
    """

    histories = 2
    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        a, b = histories
        _average(a, g, self.param.momentum)
        _average(b, g * g, self.param.momentum2)
        self.xp.divide(a, self.xp.sqrt(b) + self.xp.float32(self.param.delta), out=g)
        g *= self.xp.float32(rate)
        w -= g

    def correction(self, iteration: int) -> float:
        """For running means that have started at 0."""
        beta1, beta2 = float(np.float32(self.param.momentum)), float(np.float32(self.param.momentum2))
        return math.sqrt(1 - beta2 ** (iteration + 1)) / (1 - beta1 ** (iteration + 1))


def _average(mean: Array, values: Array, decay: float) -> None:
    """mean = decay * mean + (1 - decay) * values."""
    keep = np.float32(decay)
    mean *= keep
    mean += (np.float32(1) - keep) * values
