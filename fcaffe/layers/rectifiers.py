"""ReLU's relatives: ELU, PReLU, BNLL, Swish."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.activations import Activation, Pointwise
from fcaffe.net import Array, Blob, placements, register
from fcaffe.net.fillers import filler_or


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
