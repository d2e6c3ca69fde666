"""Functions of one value at a time: AbsVal, Exp, Log, Clip, Threshold; ReLU's relatives ELU, PReLU, BNLL, Swish."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.engines.formulas import Formula
from fcaffe.layers.activations import Activation, Pointwise
from fcaffe.net import ALL_BOTTOMS, Array, Blob, Layer, placements, register
from fcaffe.net.fillers import filler_or

# Of PReLU
FUNCTION = Formula("max(x, 0) + slope * min(x, 0)")
GRADIENT = Formula("dy * ((x > 0) + slope * (x <= 0))")
OF_SLOPE = Formula("dy * (x * (x <= 0))")

LARGEST_EXPONENT = math.log(FLT_MAX)  # of a finite float32


@register("AbsVal")
class AbsVal(Pointwise):
    """top = |x|."""

    traits = replace(Pointwise.traits, in_place=False)
    formulas = "abs(x)", "dy * sign(x)"


@register("Exp")
class Exp(Pointwise):
    """top = base^(shift + scale * x). In place too."""

    formulas = "factor * exp(rate * x)", "dy * (rate * y)"

    def numbers(self) -> dict[str, float]:
        p = self.param.exp_param
        shift = p.shift * log_of_base(self, p)
        factor = math.exp(shift) if shift < LARGEST_EXPONENT else math.inf
        return {"rate": p.scale * log_of_base(self, p), "factor": factor}


@register("Log")
class Log(Pointwise):
    """top = log to `base` of (shift + scale * x). In place its gradient, which needs x, is wrong, as in Caffe."""

    formulas = "inverse * log(scale * x + shift)", "dy * (scale * inverse / (scale * x + shift))"

    def numbers(self) -> dict[str, float]:
        p, log_base = self.param.log_param, log_of_base(self, self.param.log_param)
        if log_base == 0:
            raise self.error("there is no logarithm to the base 1")
        return {"inverse": 1 / log_base, "scale": p.scale, "shift": p.shift}


def log_of_base(layer: Layer, p: Any) -> float:
    """The natural logarithm of the `base` of an ExpParameter or LogParameter, where -1 stands for e."""
    if p.base == -1:
        return 1.0
    if p.base <= 0:
        raise layer.error(f"base must be positive, or -1 for e, not {p.base:g}")
    return math.log(p.base)


@register("Clip")
class Clip(Pointwise):
    """top = x, but at least `min` and at most `max`. The gradient passes at both bounds.

    In place it passes everywhere, as in Caffe: there is no telling what was cut.
    """

    formulas = "max(low, min(x, high))", "dy * (x >= low) * (x <= high)"  # NaN becomes `min`, as in Caffe

    def numbers(self) -> dict[str, float]:
        if not self.param.HasField("clip_param"):
            raise self.error("clip_param { min: ... max: ... } is missing")
        return {"low": self.param.clip_param.min, "high": self.param.clip_param.max}


@register("Threshold")
class Threshold(Pointwise):
    """top = 1 where x > threshold, else 0. It has no gradient. In place too."""

    traits = replace(Pointwise.traits, labels=ALL_BOTTOMS)
    formulas = "x > threshold", "0"

    def numbers(self) -> dict[str, float]:
        return {"threshold": self.param.threshold_param.threshold}


@register("ELU")
class ELU(Pointwise):
    """top = x where x > 0, else alpha * (exp(x) - 1) (Clevert, Unterthiner and Hochreiter, 2015). In place too."""

    formulas = "max(x, 0) + alpha * expm1(min(x, 0))", "dy * ((x > 0) + (y + alpha) * (x <= 0))"

    def numbers(self) -> dict[str, float]:
        return {"alpha": self.param.elu_param.alpha}


@register("PReLU")
class PReLU(Activation):
    """top = max(x, 0) + slope * min(x, 0), the slope a parameter (He, Zhang, Ren and Sun, 2015). In place too.

    One slope per channel (axis 1), or a single one with `channel_shared`; they start at 0.25 unless a filler is given.
    """

    traits = replace(Activation.traits, copies_bottom="in place", reads="bottoms")
    rule = placements.between(lambda layer, x: [1])

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, shape = self.param.prelu_param, bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"needs a bottom of two axes or more, with channels on axis 1, not {shape}")
        self.channels = shape[1]
        slopes = () if p.channel_shared else (self.channels,)
        self.add_blob(*slopes, filler=filler_or(0.25, p))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if shape[1:2] != (self.channels,):
            raise self.error(f"has slopes for {self.channels} channels, but its bottom has the shape {shape}")
        super().reshape(bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0].data
        self.engine.pointwise(FUNCTION, {"x": x, "slope": self._slope(x)}, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy, x = top[0].diff, bottom[0].data
        if self.param_propagate_down[0]:
            gradients = self.xp.empty_like(x)
            self.engine.pointwise(OF_SLOPE, {"dy": dy, "x": x}, gradients)
            shared = self.param.prelu_param.channel_shared
            self.blobs[0].diff[...] += gradients.sum() if shared else self.engine.channel_sums(gradients)
        if propagate_down[0]:
            self.engine.pointwise(GRADIENT, {"dy": dy, "x": x, "slope": self._slope(x)}, bottom[0].diff)

    def _slope(self, x: Array) -> Array:
        """As a view that repeats over all of x."""
        slope = self.blobs[0].data
        return slope.reshape(1, -1, *(1,) * (x.ndim - 2)) if slope.ndim else slope.reshape((1,) * x.ndim)


@register("BNLL")
class BNLL(Pointwise):
    """top = log(1 + exp(x)). In place its gradient, which needs x, is wrong, as in Caffe."""

    formulas = "max(x, 0) + log1p(exp(-abs(x)))", "dy * logistic(x)"


@register("Swish")
class Swish(Pointwise):
    """top = x * sigmoid(beta * x) (Ramachandran, Zoph and Le, 2017). In place too."""

    traits = replace(Pointwise.traits, copies_bottom="in place")
    formulas = "x * sigmoid(beta * x)", "dy * (beta * y + sigmoid(beta * x) * (1 - beta * y))"

    def numbers(self) -> dict[str, float]:
        return {"beta": self.param.swish_param.beta}
