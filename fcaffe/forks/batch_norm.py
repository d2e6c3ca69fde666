"""BN: batch normalisation with scale and shift, of two kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcaffe.layers.batch_norm import BatchNorm, RunningStatistics
from fcaffe.net import Array, Blob, Context, Layer, register
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
