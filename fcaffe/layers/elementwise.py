"""Functions of one value at a time, other than activations: AbsVal, Exp, Log, Clip, Threshold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.layers.activations import Activation, Pointwise
from fcaffe.net import ALL_BOTTOMS, Array, Blob, Layer, register
from fcaffe.net.arithmetic import sign

LARGEST_EXPONENT = math.log(FLT_MAX)  # of a finite float32


@register("AbsVal")
class AbsVal(Pointwise):
    """top = |x|."""

    traits = replace(Pointwise.traits, in_place=False, reads="bottoms")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.xp.abs(bottom[0].data, out=top[0].data)

    def slope(self, bottom: Blob, top: Blob) -> Array:
        return sign(bottom.data)


@register("Exp")
class Exp(Pointwise):
    """top = base^(shift + scale * x). In place too."""

    traits = replace(Pointwise.traits, reads="tops")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.exp_param
        self.rate = p.scale * log_of_base(self, p)
        shift = p.shift * log_of_base(self, p)
        self.factor = math.exp(shift) if shift < LARGEST_EXPONENT else math.inf

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = top[0].data
        self.xp.multiply(bottom[0].data, self.rate, out=y)
        self.xp.exp(y, out=y)
        y *= self.factor

    def slope(self, bottom: Blob, top: Blob) -> Array:
        return self.rate * top.data


@register("Log")
class Log(Pointwise):
    """top = log to `base` of (shift + scale * x). In place its gradient, which needs x, is wrong, as in Caffe."""

    traits = replace(Pointwise.traits, reads="bottoms")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.log_base = log_of_base(self, self.param.log_param)
        if self.log_base == 0:
            raise self.error("there is no logarithm to the base 1")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, y = self.param.log_param, top[0].data
        self.xp.multiply(bottom[0].data, p.scale, out=y)
        y += p.shift
        self.xp.log(y, out=y)
        y *= 1 / self.log_base

    def slope(self, bottom: Blob, top: Blob) -> Array:
        p = self.param.log_param
        return p.scale / self.log_base / (p.scale * bottom.data + p.shift)


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

    traits = replace(Pointwise.traits, reads="bottoms")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.param.HasField("clip_param"):
            raise self.error("clip_param { min: ... max: ... } is missing")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, y = self.param.clip_param, top[0].data
        self.xp.minimum(bottom[0].data, p.max, out=y)
        self.xp.fmax(y, p.min, out=y)  # NaN becomes `min`, as in Caffe

    def slope(self, bottom: Blob, top: Blob) -> Array:
        p, x = self.param.clip_param, bottom.data
        return (x >= p.min) & (x <= p.max)


@register("Threshold")
class Threshold(Activation):
    """top = 1 where x > threshold, else 0. It has no gradient. In place too."""

    traits = replace(Activation.traits, labels=ALL_BOTTOMS)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].data[...] = bottom[0].data > self.param.threshold_param.threshold
