"""Normalisation: BN, of two kinds, and Normalize, which divides each image or each position of it by its norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcaffe.engines.channels import channels_last
from fcaffe.layers.activations import Activation
from fcaffe.layers.batch_norm import BatchNorm, RunningStatistics
from fcaffe.net import Array, Blob, Context, Layer, placements, register
from fcaffe.net.arithmetic import sign
from fcaffe.net.fillers import filler_or
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


class RunningAverages(RunningStatistics):
    """Averages in two blobs: of the means, and of the biased variances. The weight of a new batch is 1 - fraction."""

    def add(self, mean: Blob, variance: Blob, count: float) -> None:
        if count:
            for blob, new in zip(self._sums, (mean, variance), strict=True):
                sums = blob.mutable_data
                sums *= self._fraction
                sums += (1 - self._fraction) * new.data.reshape(blob.shape)

    def read(self, mean: Blob, variance: Blob) -> None:
        for blob, own in zip((mean, variance), self._sums, strict=True):
            blob.data[...] = own.data.reshape(-1)

    def sums(self) -> list[Array]:
        return [*super().sums(), self._engine.xp.ones(1, "float32")]


class SlopeBN(BatchNorm):
    """top = (x - mean) / sqrt(variance + eps) * slope + bias, per channel (axis 1).

    Blobs (1, C, 1, 1): slope, bias, and the running mean and variance, which TEST uses. With `frozen` TRAIN uses them
    too, and nothing learns. Without it the gradient passes through mean and variance in TEST too, as in the fork.
    """

    fork = forks.PSPNET
    may_be_fused = True
    ignores_propagate_down = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.bn_param
        self.prepare(bottom[0], p.eps, p.frozen or self.phase == pb.TEST)
        shape = 1, self.channels, 1, 1
        self.add_affine(shape, p, "slope_filler", "bias_filler")
        self.add_blob(*shape)
        self.add_blob(*shape).data[...] = float(p.frozen)
        self.statistics = RunningAverages(self.engine, self.running_statistics, p.momentum)
        while len(self.param.param) < len(self.blobs):
            self.param.param.add()
        for spec in self.param.param[0 if p.frozen else 2 :]:
            spec.lr_mult = spec.decay_mult = 0

    @property
    def running_statistics(self) -> list[Blob]:
        return self.blobs[2:]

    @property
    def learned(self) -> list[Blob]:
        return [] if self.param.bn_param.frozen else super().learned

    @property
    def differentiates_statistics(self) -> bool:
        return not self.param.bn_param.frozen


class ScaleBN(BatchNorm):
    """top = (x - mean) / sqrt(variance + 1e-9) * scale + shift, per channel (axis 1), by the batch's mean and variance
    in TEST too. Blobs (1, C, 1, 1): scale, shift. Two more tops, if there are any, are mean and variance."""

    fork = forks.SEGNET
    may_be_fused = True
    traits = replace(BatchNorm.traits, tops=(1, 3))
    ignores_propagate_down = False
    EPS = 1e-9

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(top) == 2:
            raise self.error("needs 1 top, or 3: the normalised bottom, mean, variance")
        self.prepare(bottom[0], self.EPS, False)
        self.add_affine((1, self.channels, 1, 1), self.param.bn_param, "scale_filler", "shift_filler")
        self.statistics = RunningStatistics(self.engine, [], 0)

    @property
    def running_statistics(self) -> list[Blob]:
        return []

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for blob in top[1:]:
            blob.reshape(1, self.channels, 1, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().forward(bottom, top)
        for blob, values in zip(top[1:], (self.mean, self.variance), strict=False):
            blob.data[...] = values.data.reshape(blob.shape)


class FixedBN(ScaleBN):
    """top = x * scale + shift, per channel (axis 1): a ScaleBN whose mean and variance were folded into its blobs.

    In place the gradient of the scale reads the top instead of the bottom, as in the fork.
    """

    may_be_fused = True
    traits = replace(BatchNorm.traits, copies_bottom="never")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.prepare(bottom[0], 0.0, True)
        self.add_affine((1, self.channels, 1, 1), self.param.bn_param, "scale_filler", "shift_filler")
        constants = [Blob(self.xp, (size,)) for size in (self.channels, self.channels, 1)]
        for blob in constants[1:]:
            blob.data[...] = 1
        self.statistics = RunningStatistics(self.engine, constants, 1)


PSPNETS = ("slope_filler", "bias_filler", "momentum", "eps", "frozen", "engine")
SEGNETS = ("scale_filler", "shift_filler", "bn_mode")


def is_segnets(p: Any) -> bool:
    """Whether a BNParameter has a field of SegNet's fork."""
    return any(map(p.HasField, SEGNETS))


@register("BN")
def bn(param: Any, context: Context) -> Layer:
    """The layer of SegNet's fork if bn_param has one of its fields, else that of PSPNet's."""
    p = param.bn_param
    if not is_segnets(p):
        return SlopeBN(param, context)
    layer = (FixedBN if p.bn_mode == pb.BNParameter.INFERENCE else ScaleBN)(param, context)
    ours, others = ([field for field in fields if p.HasField(field)] for fields in (SEGNETS, PSPNETS))
    if others:
        raise layer.error(
            f"bn_param has {', '.join(others)}, fields of {forks.PSPNET}, and {', '.join(ours)}, fields of "
            f"{forks.SEGNET}, whose layers of this type differ; remove those of one fork"
        )
    return layer


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
