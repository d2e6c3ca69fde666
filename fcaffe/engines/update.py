"""The solvers' pass over parameters: plain array code on slices of the flat buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fcaffe.engines.base import EngineBase

Array = Any


class Part(NamedTuple):
    """A parameter's slice of the flat buffers, its weight decay and its multiplier of the rate."""

    span: slice
    decay: float
    lr_mult: float


class Settings(NamedTuple):
    """The numbers of a solver that its rule may need, by the names that they have in its prototxt."""

    momentum: float = 0.0
    momentum2: float = 0.0
    delta: float = 0.0
    rms_decay: float = 0.0


class PlainUpdate(EngineBase):
    """Arrays are flat and of one length: weights w, gradients g, histories. Afterwards g holds what w was lowered by.

    The rate and the other numbers are rounded to float32 first, as Caffe's are.
    """

    def add_decay(self, w: Array, g: Array, decay: float, kind: str) -> None:
        """g += decay * w (L2) or decay * sign(w) (L1)."""
        g += self.xp.float32(decay) * (w if kind == "L2" else self.xp.sign(w))

    def sgd_update(self, w: Array, g: Array, h: Array, rate: float, momentum: float) -> None:
        """h = momentum * h + rate * g; w -= h."""
        h *= self.xp.float32(momentum)
        g *= self.xp.float32(rate)
        h += g
        g[...] = h
        w -= g

    def nesterov_update(self, w: Array, g: Array, h: Array, rate: float, momentum: float) -> None:
        """h' = momentum * h + rate * g; w -= (1 + momentum) * h' - momentum * h."""
        momentum = self.xp.float32(momentum)
        looked_back = momentum * h
        h *= momentum
        g *= self.xp.float32(rate)
        h += g
        self.xp.multiply(h, self.xp.float32(1) + momentum, out=g)
        g -= looked_back
        w -= g

    def adagrad_update(self, w: Array, g: Array, h: Array, rate: float, delta: float) -> None:
        """h += g^2; w -= rate * g / (sqrt(h) + delta)."""
        h += g * g
        g /= self.xp.sqrt(h) + self.xp.float32(delta)
        g *= self.xp.float32(rate)
        w -= g

    def rmsprop_update(self, w: Array, g: Array, h: Array, rate: float, decay: float, delta: float) -> None:
        """h = decay * h + (1 - decay) * g^2; w -= rate * g / (sqrt(h) + delta)."""
        self._average(h, g * g, decay)
        g /= self.xp.sqrt(h) + self.xp.float32(delta)
        g *= self.xp.float32(rate)
        w -= g

    def adadelta_update(
        self, w: Array, g: Array, h: Array, s: Array, rate: float, momentum: float, delta: float
    ) -> None:
        """h, s: running means of squared gradients and of squared steps u = g * sqrt((s + delta) / (h + delta));
        w -= rate * u."""
        delta = self.xp.float32(delta)
        self._average(h, g * g, momentum)
        g *= self.xp.sqrt((s + delta) / (h + delta))
        self._average(s, g * g, momentum)
        g *= self.xp.float32(rate)
        w -= g

    def adam_update(
        self, w: Array, g: Array, a: Array, b: Array, rate: float, momentum: float, momentum2: float, delta: float
    ) -> None:
        """a, b: running means of g and g^2; w -= rate * a / (sqrt(b) + delta). The rate holds the bias correction."""
        self._average(a, g, momentum)
        self._average(b, g * g, momentum2)
        self.xp.divide(a, self.xp.sqrt(b) + self.xp.float32(delta), out=g)
        g *= self.xp.float32(rate)
        w -= g

    def _average(self, mean: Array, values: Array, keep: float) -> None:
        """mean = keep * mean + (1 - keep) * values."""
        keep = self.xp.float32(keep)
        mean *= keep
        mean += (self.xp.float32(1) - keep) * values

    # --- all parameters at once, for engines that do so (Engine.updates_at_once) --------------------------------------

    def prepare_update(self, parts: Sequence[Part], regularization: str) -> Any:
        """The table of parameters that update_all takes; the regularization is "L1" or "L2"."""
        raise NotImplementedError

    def set_step(self, rate: float, gradient_scale: float) -> None:
        """Set the rate of the next update_all and the factor of its gradients."""
        raise NotImplementedError

    def update_all(
        self,
        rule: str,
        table: Any,
        data: Array,
        diff: Array,
        history: Sequence[Array],
        settings: Settings,
    ) -> None:
        """Scale the gradients, regularise, and apply the rule of solver type `rule` to all parameters of the `table`.

        `set_step` has set the rate, which includes Adam's bias correction, and the factor of the gradients.
        """
        raise NotImplementedError
