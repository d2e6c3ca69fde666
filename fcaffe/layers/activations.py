"""Activations that look at one value at a time: ReLU, Sigmoid, TanH, Power; and Softmax. All of them work in place."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.engines.formulas import Formula
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register


class Activation(Layer):
    """Base: one bottom, one top of the same shape."""

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True, overwrites_gradient=True)
    rule = placements.elementwise

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape)


class Pointwise(Activation):
    """Base of functions of one value at a time, as `formulas` of fcaffe.engines.formulas.

    The first one is of the bottom x. The second one is the gradient of x, in terms of that of the top, dy, x and y.
    Without it the gradient follows from the first. `numbers` gives the names in them that are numbers.
    """

    formulas: tuple[str, ...] = ()

    def numbers(self) -> dict[str, float]:
        return {}

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.formulas:
            return  # a subclass that computes in another way
        first, *second = (Formula(text, **self.numbers()) for text in self.formulas)
        self.function, self.gradient = first, second[0] if second else first.gradient()
        x, y = (name in self.gradient.names for name in "xy")
        self.traits = replace(self.traits, reads="both" if x and y else "bottoms" if x else "tops" if y else "neither")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.pointwise(self.function, {"x": bottom[0].data} if self.function.names else {}, top[0].data)

    def slope(self, bottom: Blob, top: Blob) -> Array | float:
        """The derivative at each value of the bottom, of a subclass without formulas."""
        raise NotImplementedError

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not self.formulas:
            self.xp.multiply(top[0].diff, self.slope(bottom[0], top[0]), out=bottom[0].diff)
            return
        blobs = {"x": bottom[0], "y": top[0]}
        arrays = {name: top[0].diff if name == "dy" else blobs[name].data for name in sorted(self.gradient.names)}
        self.engine.pointwise(self.gradient, arrays, bottom[0].diff)


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

    formulas = "sigmoid(x)", "dy * (y * (1 - y))"


@register("TanH")
class TanH(Pointwise):
    """top = tanh(x)."""

    formulas = "tanh(x)", "dy * (1 - y * y)"


@register("Power")
class Power(Pointwise):
    """top = (shift + scale * x)^power; a constant without gradient if power or scale is 0.

    In place only with power 1: the gradient of others needs x.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.power_param
        if p.power == 0 or p.scale == 0:
            self.formulas = "shift ** power", "0"
        elif p.power in (1, 2):
            self.formulas = ("(scale * x + shift) ** power",)
        elif p.shift == 0:
            self.formulas = "(scale * x) ** power", "dy * (power * (y / x))"  # NaN at 0, as in Caffe
        else:
            self.formulas = "(scale * x + shift) ** power", "dy * (power * scale * (y / (scale * x + shift)))"
        super().setup(bottom, top)

    def numbers(self) -> dict[str, float]:
        p = self.param.power_param
        return {"scale": p.scale, "shift": p.shift, "power": p.power}


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
