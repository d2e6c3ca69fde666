"""Update rules: how weights follow from gradients. The registry has one for each name that a solver's `type` takes.

A rule sees slices of the flat buffers and nothing of nets, ranks or schedules: those are `fcaffe.solvers.update`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from fcaffe.engines import Engine
from fcaffe.errors import SolverError
from fcaffe.net.blob import Array


class Rule:
    """Lowers weights by what follows from their gradients and from `histories` arrays of the parameters' size.

    A subclass overrides `update`. One whose rule the engines' `update_all` knows by the solver's type says
    `all_at_once`; any other is applied slice by slice, on GPUs too.
    """

    histories: ClassVar[int] = 1
    all_at_once: ClassVar[bool] = False

    def __init__(self, param: Any, engine: Engine) -> None:
        self.param = param
        self.engine = engine
        self.xp = engine.xp

    def check(self) -> None:
        """Raise SolverError for parameters that the rule cannot do with."""

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        """Lower the weights `w`, by their gradients `g`; afterwards `g` holds what `w` was lowered by.

        All are flat float32 slices of one parameter; `histories` keep from iteration to iteration what the rule writes.
        The rate and the other numbers are rounded to float32 first, as Caffe's are.
        """
        raise NotImplementedError

    def decay_and_update(self, w: Array, g: Array, histories: Sequence[Array], rate: float, decay: float) -> None:
        """`update`, after the gradient of the regularisation has been added."""
        if decay:
            slope = w if self.param.regularization_type == "L2" else self.xp.sign(w)
            g += self.xp.float32(decay) * slope
        self.update(w, g, histories, rate)

    def correction(self, iteration: int) -> float:
        """What the rate of each parameter is multiplied by at this iteration."""
        return 1.0

    def with_momentum_applied(self) -> Rule:
        """The rule for gradients to which a compression has applied SGD's momentum. SolverError if there is none."""
        raise SolverError(
            f"solver type {self.param.type} does not go with a compression that applies the momentum of SGD itself "
            '(topk): use type: "SGD", or another compression'
        )


_registry: dict[str, type[Rule]] = {}
RuleClass = TypeVar("RuleClass", bound=type[Rule])


def register_rule(solver_type: str) -> Callable[[RuleClass], RuleClass]:
    """Class decorator: make this class the rule for `type: "solver_type"`."""

    def add(cls: RuleClass) -> RuleClass:
        _registry[solver_type] = cls
        return cls

    return add


def solver_types() -> list[str]:
    return sorted(_registry)


def create_rule(param: Any, engine: Engine) -> Rule:
    """The rule that a SolverParameter names, its parameters checked. Raises SolverError."""
    if param.type not in _registry:
        raise SolverError(f"unknown solver type '{param.type}'; known ones: {', '.join(solver_types())}")
    rule = _registry[param.type](param, engine)
    rule.check()
    return rule


@register_rule("SGD")
class SGD(Rule):
    """h = momentum * h + rate * g; w -= h.

    The rate is folded into the history, as in Caffe: changing it in mid-run leaves the momentum gathered so far alone.
    """

    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        h = histories[0]
        h *= self.xp.float32(self.param.momentum)
        g *= self.xp.float32(rate)
        h += g
        g[...] = h
        w -= g

    def with_momentum_applied(self) -> Rule:
        return DecayWithMomentum(self.param, self.engine)


class DecayWithMomentum(SGD):
    """SGD for gradients that come with their momentum: these are applied as they are, the decay gets its own."""

    all_at_once = False

    def decay_and_update(self, w: Array, g: Array, histories: Sequence[Array], rate: float, decay: float) -> None:
        gradients = g.copy()
        g[...] = 0
        Rule.decay_and_update(self, w, g, histories, rate, decay)
        gradients *= self.xp.float32(rate)
        w -= gradients
        g += gradients


@register_rule("Nesterov")
class Nesterov(Rule):
    """h' = momentum * h + rate * g; w -= (1 + momentum) * h' - momentum * h."""

    all_at_once = True

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        h, momentum = histories[0], self.xp.float32(self.param.momentum)
        looked_back = momentum * h
        h *= momentum
        g *= self.xp.float32(rate)
        h += g
        self.xp.multiply(h, self.xp.float32(1) + momentum, out=g)
        g -= looked_back
        w -= g


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
