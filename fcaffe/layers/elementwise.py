"""Functions of one value at a time: AbsVal, Exp, Log, Clip, Threshold; ReLU's relatives ELU, PReLU, BNLL, Swish."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.layers.activations import Activation, Pointwise
from fcaffe.net import ALL_BOTTOMS, Array, Blob, Layer, placements, register
from fcaffe.net.arithmetic import sign
from fcaffe.net.fillers import filler_or

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


@register("ELU")
class ELU(Pointwise):
    """top = x where x > 0, else alpha * (exp(x) - 1) (Clevert, Unterthiner and Hochreiter, 2015). In place too."""

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        negative = self.param.elu_param.alpha * self.xp.expm1(self.xp.minimum(x, 0))
        self.xp.maximum(x, 0, out=y)
        y += negative

    def slope(self, bottom: Blob, top: Blob) -> Array:
        slope = top.data + self.param.elu_param.alpha
        slope *= bottom.data <= 0
        slope += bottom.data > 0
        return slope


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
        x, y = bottom[0].data, top[0].data
        negative = self._slope(x) * self.xp.minimum(x, 0)
        self.xp.maximum(x, 0, out=y)
        y += negative

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy, x = top[0].diff, bottom[0].data
        negative = x <= 0
        if self.param_propagate_down[0]:
            gradients = dy * x
            gradients *= negative
            shared = self.param.prelu_param.channel_shared
            self.blobs[0].diff[...] += gradients.sum() if shared else self.engine.channel_sums(gradients)
        if propagate_down[0]:
            slopes = self._slope(x) * negative
            slopes += x > 0
            self.xp.multiply(dy, slopes, out=bottom[0].diff)

    def _slope(self, x: Array) -> Array:
        """As a view that repeats over all of x."""
        slope = self.blobs[0].data
        return slope.reshape(-1, *(1,) * (x.ndim - 2)) if slope.ndim else slope


@register("BNLL")
class BNLL(Pointwise):
    """top = log(1 + exp(x)). In place its gradient, which needs x, is wrong, as in Caffe."""

    LARGEST = 50  # x counts as no more than this in the gradient, so that its exponential stays finite

    traits = replace(Pointwise.traits, reads="bottoms")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        logarithm = self.xp.log1p(self.xp.exp(-abs(x)))
        self.xp.maximum(x, 0, out=y)
        y += logarithm

    def slope(self, bottom: Blob, top: Blob) -> Array:
        exponential = self.xp.exp(self.xp.minimum(bottom.data, self.LARGEST))
        return exponential / (exponential + 1)


@register("Swish")
class Swish(Pointwise):
    """top = x * sigmoid(beta * x) (Ramachandran, Zoph and Le, 2017). In place too."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.gate = Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.gate.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, gate = bottom[0].data, self.gate.data
        self.xp.multiply(x, self.param.swish_param.beta, out=gate)
        self.engine.sigmoid(gate, gate)
        self.xp.multiply(x, gate, out=top[0].data)

    def slope(self, bottom: Blob, top: Blob) -> Array:
        gate, scaled = self.gate.data, self.param.swish_param.beta * top.data
        return scaled + gate * (1 - scaled)
