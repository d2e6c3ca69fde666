"""Normalize: divides each image, or each position of it, by its norm."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.engines.channels import channels_last
from fcaffe.layers.activations import Activation
from fcaffe.net import Array, Blob, placements, register
from fcaffe.net.arithmetic import sign
from fcaffe.net.fillers import filler_or
from fcaffe.proto import forks


@register("Normalize")
class Normalize(Activation):
    """top = x / norm * scale, with the norm sqrt(sum of x^2 + eps). In place too.

    The SSD fork's layer, with `norm_param`: the sum is over an image with `across_spatial`, else over the channels of a
    position. The scale has one value with `channel_shared`, else one for each channel, all 1 unless a filler is given.
    As in the fork, scales of the channels are left out where the gradient passes through the norm.

    That of caffe-windows, with `normalize_param`: over the channels of each position, without a scale. `normalize_type`
    is "L2", or "L1" for the norm sum of |x| + eps.
    """

    fork = forks.SSD
    traits = replace(Activation.traits, copies_bottom="in place")
    rule = placements.by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape, p = bottom[0].shape, self.param.norm_param
        if len(shape) < 2:
            raise self.error(f"needs a bottom of two axes or more, with channels on axis 1, not {shape}")
        self.norm = Blob(self.xp)
        if self.param.HasField("normalize_param"):
            self._setup_windows()
            return
        self.axes, self.l1, self.eps = (*range(1, len(shape)),) if p.across_spatial else (1,), False, p.eps
        scales = () if p.channel_shared else (shape[1],)
        self.add_blob(*scales, filler=filler_or(1, p, "scale_filler"))

    def _setup_windows(self) -> None:
        if self.param.HasField("norm_param"):
            raise self.error(
                f"norm_param is a field of {forks.SSD}, normalize_param one of {forks.WINDOWS}; remove one of the two"
            )
        kind = self.param.normalize_param.normalize_type
        if kind not in ("L1", "L2"):
            raise self.error(f'normalize_param.normalize_type must be "L2" or "L1", not "{kind}"')
        self.fork, self.axes, self.l1, self.eps = forks.WINDOWS, (1,), kind == "L1", 1e-6

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        if self.blobs and self.blobs[0].shape not in ((), shape[1:2]):
            raise self.error(f"has scales for {self.blobs[0].count} channels, but its bottom has the shape {shape}")
        self.norm.reshape(*(1 if axis in self.axes else n for axis, n in enumerate(shape)))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, x, y = self.xp, bottom[0].data, top[0].data
        total = (self._sums(abs(x)) if self.l1 else self._sums(x, x)) + self.eps
        self.norm.data[...] = total if self.l1 else xp.sqrt(total)
        xp.divide(x, self.norm.data, out=y)
        y *= self._scale(x)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom, self.norm]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        xp, x, dy, rate = self.xp, bottom[0].data, top[0].diff, 1 / self.norm.data
        products = xp.multiply(x, dy)
        if self.blobs and self.param_propagate_down[0]:
            scale = self.blobs[0]
            products *= rate
            scale.diff[...] += self.engine.channel_sums(products) if scale.shape else products.sum()
        if propagate_down[0]:
            total = self._sums(x, dy).astype(x.dtype) * rate
            norm_slope = sign(x) * total if self.l1 else xp.multiply(x, total * rate, out=products)
            dx = xp.subtract(dy, norm_slope, out=bottom[0].diff)
            dx *= self._scale(x)
            dx *= rate

    def _sums(self, a: Array, b: Array | None = None) -> Array:
        """Sums of a, or of a * b, over what the norm is of, in its shape."""
        shape = self.norm.count, a.size // max(1, self.norm.count), 1
        rows = (each if each is None else channels_last(each).reshape(shape) for each in (a, b))
        return self.engine.row_sums(*rows).reshape(self.norm.shape)

    def _scale(self, x: Array) -> Array:
        """In a shape that broadcasts with x."""
        scale = self.blobs[0].data if self.blobs else self.xp.ones((), self.xp.float32)
        return scale.reshape(1, -1, *(1,) * (x.ndim - 2)) if scale.ndim else scale.reshape((1,) * x.ndim)
