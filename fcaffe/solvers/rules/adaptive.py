"""Update rules that scale each weight's step by the history of its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fcaffe.errors import SolverError
from fcaffe.net.blob import Array
from fcaffe.solvers.rules.rule import Rule, register_rule


class WithoutMomentum(Rule):
    """Base of the rules that Caffe refuses to run with momentum."""

    all_at_once = True

    def check(self) -> None:
        if self.param.momentum:
            raise SolverError(f"Momentum cannot be used with {self.param.type}; leave it out")


@register_rule("AdaGrad")
class AdaGrad(WithoutMomentum):
    """Duchi et al. 2011: h += g^2; w -= rate * g / (sqrt(h) + delta)."""

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        self.engine.adagrad_update(w, g, histories[0], rate, self.param.delta)


@register_rule("RMSProp")
class RMSProp(WithoutMomentum):
    """Tieleman and Hinton 2012: h a running mean of g^2 by rms_decay; w -= rate * g / (sqrt(h) + delta)."""

    def check(self) -> None:
        super().check()
        if not 0 <= self.param.rms_decay < 1:
            raise SolverError(f"rms_decay should lie between 0 and 1 (1 excluded), not {self.param.rms_decay:g}")

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        self.engine.rmsprop_update(w, g, histories[0], rate, self.param.rms_decay, self.param.delta)


@register_rule("AdaDelta")
class AdaDelta(Rule):
    """Zeiler 2012, with `momentum` as the decay of both running means."""

    histories = 2
    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        h, s = histories
        self.engine.adadelta_update(w, g, h, s, rate, self.param.momentum, self.param.delta)


@register_rule("Adam")
class Adam(Rule):
    """Kingma and Ba 2015, `momentum` and `momentum2` being beta1 and beta2."""

    histories = 2
    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        (a, b), p = histories, self.param
        self.engine.adam_update(w, g, a, b, rate, p.momentum, p.momentum2, p.delta)

    def correction(self, iteration: int) -> float:
        """For running means that have started at 0."""
        beta1, beta2 = float(np.float32(self.param.momentum)), float(np.float32(self.param.momentum2))
        return math.sqrt(1 - beta2 ** (iteration + 1)) / (1 - beta1 ** (iteration + 1))
