"""Normalize: divides each image, or each position of it, by its norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcaffe.layers.activations import Activation
from fcaffe.net import Array, Blob, Context, Layer, register
from fcaffe.net.fillers import fill_blob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


class Normalization(Activation):
    """Base: top = x / norm, times a parameter, the scale, if there is one. The norm is over `axes`. In place too."""

    traits = replace(Activation.traits, by_sample=True)
    axes: tuple[int, ...] = (1,)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom[0].shape) < 2:
            raise self.error(f"needs a bottom of two axes or more, with channels on axis 1, not {bottom[0].shape}")
        self.norm, self.bottom_copy = Blob(self.xp), Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.norm.reshape(*(1 if axis in self.axes else n for axis, n in enumerate(bottom[0].shape)))

    def norm_of(self, x: Array) -> Array:
        """The norm, of one value along `axes`."""
        raise NotImplementedError

    def slope_of(self, x: Array, normalized: Array) -> Array:
        """The derivative of the norm by x."""
        return normalized

    def scale(self, x: Array) -> Any:
        """What the normalised values are multiplied by."""
        return 1

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = self.keep_bottom(bottom, top).data, top[0].data
        self.norm.data[...] = self.norm_of(x)
        self.xp.divide(x, self.norm.data, out=y)
        y *= self.scale(x)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [self.kept_bottom(bottom, top), self.norm]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        x, norm, dy = self.kept_bottom(bottom, top).data, self.norm.data, top[0].diff
        normalized = x / norm
        products = normalized * dy
        if self.blobs and self.param_propagate_down[0]:
            scale = self.blobs[0]
            scale.diff[...] += self.engine.channel_sums(products) if scale.shape else products.sum()
        if propagate_down[0]:
            through_norm = self.slope_of(x, normalized) * products.sum(axis=self.axes, keepdims=True)
            self.xp.multiply(dy - through_norm, self.scale(x) / norm, out=bottom[0].diff)


class NormalizeSSD(Normalization):
    """top = x / sqrt(sum of x^2 + eps) * scale.

    The sum is over an image with `across_spatial`, else over the channels of a position. The scale has one value with
    `channel_shared`, else one for each channel, all 1 unless a filler is given. As in the fork, scales of the channels
    are left out where the gradient passes through the norm.
    """

    fork = forks.SSD

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        p, shape = self.param.norm_param, bottom[0].shape
        self.axes = tuple(range(1, len(shape))) if p.across_spatial else (1,)
        scale = self.add_blob() if p.channel_shared else self.add_blob(shape[1])
        one = pb.FillerParameter(type="constant", value=1)
        fill_blob(scale, p.scale_filler if p.HasField("scale_filler") else one, self.context.random)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        scales, shape = self.blobs[0].shape, bottom[0].shape
        if scales not in ((), shape[1:2]):
            raise self.error(f"has scales for {scales[0]} channels, but its bottom has the shape {shape}")
        super().reshape(bottom, top)

    def norm_of(self, x: Array) -> Array:
        squares = (x * x).sum(axis=self.axes, keepdims=True)
        return self.xp.sqrt(squares + self.xp.float32(self.param.norm_param.eps))

    def scale(self, x: Array) -> Array:
        scale = self.blobs[0].data
        return scale.reshape(-1, *(1,) * (x.ndim - 2)) if scale.ndim else scale


class NormalizeWindows(Normalization):
    """top = x / norm, over the channels of each position: L2, sqrt(sum of x^2 + 1e-6), or L1, sum of |x| + 1e-6."""

    fork = forks.WINDOWS
    EPS = 1e-6

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.kind = self.param.normalize_param.normalize_type
        if self.kind not in ("L1", "L2"):
            raise self.error(f'normalize_param.normalize_type must be "L2" or "L1", not "{self.kind}"')

    def norm_of(self, x: Array) -> Array:
        eps = self.xp.float32(self.EPS)
        if self.kind == "L1":
            return abs(x).sum(axis=1, keepdims=True) + eps
        return self.xp.sqrt((x * x).sum(axis=1, keepdims=True) + eps)

    def slope_of(self, x: Array, normalized: Array) -> Array:
        return self.xp.sign(x) if self.kind == "L1" else normalized


@register("Normalize")
def normalize(param: Any, context: Context) -> Layer:
    """The SSD fork's layer, or that of caffe-windows if there is a normalize_param."""
    if not param.HasField("normalize_param"):
        return NormalizeSSD(param, context)
    layer = NormalizeWindows(param, context)
    if param.HasField("norm_param"):
        raise layer.error(
            f"norm_param is a field of {forks.SSD}, normalize_param one of {forks.WINDOWS}; remove one of the two"
        )
    return layer
