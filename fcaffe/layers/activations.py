"""Activations that look at one value at a time: ReLU, Sigmoid, TanH, Power; and Softmax. All of them work in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register


class Activation(Layer):
    """Base: one bottom, one top of the same shape."""

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True)
    rule = placements.elementwise

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape)


class Pointwise(Activation):
    """Base of functions of one value at a time. The trait `reads` says what `slope` reads."""

    def slope(self, bottom: Blob, top: Blob) -> Array | float:
        """The derivative at each value of the bottom."""
        raise NotImplementedError

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.xp.multiply(top[0].diff, self.slope(bottom[0], top[0]), out=bottom[0].diff)


@register("ReLU")
class ReLU(Pointwise):
    """top = max(x, 0) + negative_slope * min(x, 0). At 0 the gradient is that of the negative side."""

    traits = replace(Pointwise.traits, half=Half.SAME, reads="bottoms")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.relu_forward(bottom[0].data, top[0].data, self.param.relu_param.negative_slope)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        slope = self.param.relu_param.negative_slope
        self.engine.relu_backward(bottom[0].data, top[0].diff, bottom[0].diff, slope)


def is_plain_relu(layer: Layer) -> bool:
    """Whether it is a ReLU, no subclass of it, that cuts off at 0."""
    return type(layer) is ReLU and not layer.param.relu_param.negative_slope


@register("Sigmoid")
class Sigmoid(Pointwise):
    """top = 1 / (1 + exp(-x))."""

    traits = replace(Pointwise.traits, reads="tops")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.sigmoid(bottom[0].data, top[0].data)

    def slope(self, bottom: Blob, top: Blob) -> Array:
        y = top.data
        return y * (1 - y)


@register("TanH")
class TanH(Pointwise):
    """top = tanh(x)."""

    traits = replace(Pointwise.traits, reads="tops")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.xp.tanh(bottom[0].data, out=top[0].data)

    def slope(self, bottom: Blob, top: Blob) -> Array:
        y = top.data
        return 1 - y * y


@register("Power")
class Power(Pointwise):
    """top = (shift + scale * x)^power; a constant without gradient if power or scale is 0.

    In place only with power 1: the gradient of others needs x.
    """

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, p = self.xp, self.param.power_param
        y = top[0].data
        if self._is_constant:
            y[...] = np.power(np.float32(p.shift), np.float32(p.power))
            return
        self._affine(bottom[0].data, y)
        if p.power == 2:
            xp.multiply(y, y, out=y)
        elif p.power != 1:
            xp.power(y, xp.float32(p.power), out=y)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.power_param
        if self._is_constant or p.power == 1:
            self.traits = replace(self.traits, reads="neither")
        elif p.power == 2:
            self.traits = replace(self.traits, reads="bottoms")

    def slope(self, bottom: Blob, top: Blob) -> Array | float:
        p = self.param.power_param
        slope: float = p.power * p.scale
        if self.traits.reads == "neither":
            return slope
        x = bottom.data
        if p.power == 2:
            return slope * p.scale * x + slope * p.shift
        if p.shift == 0:
            return p.power * (top.data / x)  # NaN at 0, as in Caffe
        base = self.xp.empty_like(x)
        self._affine(x, base)
        return slope * (top.data / base)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self._is_constant:
            bottom[0].diff[...] = 0
        else:
            super().backward(top, propagate_down, bottom)

    @property
    def _is_constant(self) -> bool:
        return bool(self.param.power_param.power == 0 or self.param.power_param.scale == 0)

    def _affine(self, x: Array, out: Array) -> None:
        """out = shift + scale * x."""
        p = self.param.power_param
        self.xp.multiply(x, p.scale, out=out)
        if p.shift:
            out += p.shift


@register("Softmax")
class Softmax(Activation):
    """top = exp(x) / sum of exp(x) along `axis`; the maximum is subtracted first. In place too."""

    traits = replace(Activation.traits, half=Half.FIRST, reads="tops")
    ignores_propagate_down = True
    rule = placements.between(lambda layer, x: [x.canonical_axis(layer.param.softmax_param.axis)])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.axis = bottom[0].canonical_axis(self.param.softmax_param.axis)
        super().reshape(bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.softmax_forward(bottom[0].data, top[0].data, self.axis)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.engine.softmax_backward(top[0].data, top[0].diff, bottom[0].diff, self.axis)
