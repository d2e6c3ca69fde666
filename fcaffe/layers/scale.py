"""Scale and Bias: multiply by, or add, a factor that is repeated over the other axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcaffe import log
from fcaffe.net import Array, Blob, Half, Layer, Traits, register
from fcaffe.net.fillers import filler_or
from fcaffe.net.placements import REPLICATE, Placements, by_sample, common


class Broadcasting(Layer):
    """Base: combines the first bottom with an operand whose axes match the bottom's from `axis` on.

    The operand is the second bottom, or a parameter of `num_axes` axes (-1: all to the end; 0: a scalar).
    """

    traits = Traits(bottoms=(1, 2), tops=1, reshapes_by_shape=True, overwrites_gradient=True)

    def own_param(self) -> Any:
        """The message with axis and num_axes."""
        raise NotImplementedError

    def rule(self, bottom: list[Blob]) -> Placements:
        p, operand = self.own_param(), bottom[1:]
        has_samples = bool(bottom[-1].shape) and bottom[0].canonical_axis(p.axis) == 0  # the operand, on its axis 0
        if has_samples and operand and not getattr(p, "bias_term", False):
            return by_sample(self, bottom)
        keeps_rows = not (has_samples and (operand or p.num_axes))
        placement = common(self, bottom[:1], lambda shard: shard.axis == 0 and keeps_rows)
        return [placement, *[REPLICATE] * len(operand)], [placement]

    def make_operand(self, bottom: Blob, filler: Any) -> None:
        """Append the parameter blob."""
        p = self.own_param()
        axis = bottom.canonical_axis(p.axis)
        end = len(bottom.shape) if p.num_axes == -1 else axis + p.num_axes
        if not axis <= end <= len(bottom.shape):
            raise self.error(f"axis {p.axis} and num_axes {p.num_axes} do not fit the bottom's shape {bottom.shape}")
        self.add_blob(*bottom.shape[axis:end], filler=filler)

    def operand(self, bottom: list[Blob]) -> Blob:
        return bottom[1] if len(bottom) > 1 else self.blobs[0]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape, operand = bottom[0].shape, self.operand(bottom).shape
        self.axis = bottom[0].canonical_axis(self.own_param().axis) if operand else 0
        if shape[self.axis : self.axis + len(operand)] != operand:
            raise self.error(
                f"its operand of shape {operand} does not match the bottom's shape {shape} from axis {self.axis} on"
            )
        top[0].reshape(*shape)

    def spread(self, operand: Array, x: Array) -> Array:
        """The operand as a view that NumPy repeats over all of x."""
        return operand.reshape((1,) * self.axis + operand.shape + (1,) * (x.ndim - self.axis - operand.ndim))

    def gathered(self, dy: Array, operand: Blob) -> Array:
        """dy summed over the axes that the operand lacks: the gradient of `spread`."""
        inside = range(self.axis, self.axis + len(operand.shape))
        if inside == range(1, 2):
            return self.engine.channel_sums(dy)
        lacking = tuple(axis for axis in range(dy.ndim) if axis not in inside)
        return dy.sum(axis=lacking, dtype=self.xp.float64).astype(dy.dtype) if lacking else dy


@register("Bias")
class Bias(Broadcasting):
    """top = x + bias. In place too."""

    traits = replace(Broadcasting.traits, reads="neither")

    def own_param(self) -> Any:
        return self.param.bias_param

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom) == 1:
            self.make_operand(bottom[0], self.own_param().filler)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0].data
        self.xp.add(x, self.spread(self.operand(bottom).data, x), out=top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy, bias = top[0].diff, self.operand(bottom)
        if len(bottom) > 1:
            if propagate_down[1]:
                bias.diff[...] = self.gathered(dy, bias)
        elif self.param_propagate_down[0]:
            bias.diff[...] += self.gathered(dy, bias)
        if propagate_down[0] and not top[0].shares_diff(bottom[0]):
            bottom[0].diff[...] = dy


@register("Scale")
class Scale(Broadcasting):
    """top = x * scale, with `bias_term` + bias (a parameter of the same shape). In place too.

    The scale starts at 1 unless a filler is given.
    """

    traits = replace(Broadcasting.traits, copies_bottom="in place", reads="bottoms")

    def own_param(self) -> Any:
        return self.param.scale_param

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.own_param()
        if len(bottom) == 1:
            self.make_operand(bottom[0], filler_or(1, p))
        if p.bias_term:
            log.making_layer(self.name)  # Caffe has a Bias layer of this name in here
            self.add_blob(*self.operand(bottom).shape, filler=p.bias_filler)
        if len(bottom) == 1:
            of_channels = p.bias_term and bottom[0].canonical_axis(p.axis) == 1 and len(self.blobs[0].shape) == 1
            self.traits = replace(self.traits, half=Half.SAME if of_channels else Half.SAME_IN_XP)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        shapes = self.operand(bottom).shape, self.blobs[-1].shape if self.blobs else None
        if self.own_param().bias_term and shapes[0] != shapes[1]:
            raise self.error(f"its operand of shape {shapes[0]} does not match its bias of shape {shapes[1]}")

    @property
    def is_per_channel(self) -> bool:
        """Whether scale and bias are parameters with a value for each channel, that all learn."""
        return self.has_channels and all(self.param_propagate_down)

    @property
    def has_channels(self) -> bool:
        """Whether scale and bias are parameters with a value for each channel."""
        return len(self.blobs) == 2 and self.axis == 1 and len(self.blobs[0].shape) == 1

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.has_channels:
            self.engine.scale_channels(x, y, self.blobs[0].data, self.blobs[1].data)
            return
        self.xp.multiply(x, self.spread(self.operand(bottom).data, x), out=y)
        if self.own_param().bias_term:
            y += self.spread(self.blobs[-1].data, x)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        x, dy, scale = bottom[0].data, top[0].diff, self.operand(bottom)
        if self.is_per_channel and propagate_down[0]:
            sums = self.xp.empty((2, *scale.shape), scale.dtype)
            self.engine.scale_channels_backward(x, dy, bottom[0].diff, scale.data, sums[0], sums[1])
            for blob, gradient in zip(self.blobs, sums, strict=True):
                blob.diff[...] += gradient
            return
        with self.engine.in_float32([dy, x], [bottom[0].diff] if propagate_down[0] else []) as (dy, x, *dx):
            if self.own_param().bias_term and self.param_propagate_down[-1]:
                self.blobs[-1].diff[...] += self.gathered(dy, self.blobs[-1])
            if len(bottom) > 1:
                if propagate_down[1]:
                    scale.diff[...] = self.gathered(dy * x, scale)
            elif self.param_propagate_down[0]:
                scale.diff[...] += self.gathered(dy * x, scale)
            if propagate_down[0]:
                self.xp.multiply(dy, self.spread(scale.data, dy), out=dx[0])
