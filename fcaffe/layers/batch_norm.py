"""Batch normalisation (Ioffe and Szegedy, 2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.engines.affine import Affine, normalization, scaling
from fcaffe.engines.normalization import Normalizer, Whole
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register
from fcaffe.net.fillers import filler_or
from fcaffe.net.layer import Held
from fcaffe.net.workers import Workers
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb


class RunningStatistics:
    """The mean and variance of all batches that a BatchNorm has seen, of which recent ones count more.

    Sums in three blobs, as in Caffe: of the means (C,), of the unbiased variances (C,), and of their weights (1,). Each
    batch that is added multiplies them by `fraction` first. Without blobs nothing is added.
    """

    def __init__(self, engine: Engine, sums: list[Blob], fraction: float) -> None:
        self._engine = engine
        self._sums = sums
        self._fraction = fraction

    def add(self, mean: Blob, variance: Blob, count: float | Array) -> None:
        """Those of one more batch, with `count` values for each channel: a number, or an array of one on a GPU."""
        on_device = isinstance(count, self._engine.xp.ndarray)
        if self._sums and (on_device or count):
            unbiased = count / (self._engine.xp.maximum if on_device else max)(count - 1, 1)
            sums = tuple(blob.mutable_data for blob in self._sums)
            self._engine.add_to_statistics(sums, mean.data, variance.data, unbiased, self._fraction)

    def read(self, mean: Blob, variance: Blob) -> None:
        """Write the mean and the variance of all batches; 0 before there was any."""
        total = self._sums[2].data
        none = total == 0
        factor = ~none / (total + none)
        for blob, sums in zip((mean, variance), self._sums, strict=False):
            self._engine.xp.multiply(sums.data, factor, out=blob.data)

    def sums(self) -> list[Array]:
        return [blob.data for blob in self._sums]


@register("BatchNorm")
class BatchNorm(Layer):
    """top = (x - mean) / sqrt(variance + eps), per channel (axis 1).

    Mean and variance are the batch's, or, with use_global_stats (the default of TEST), those of all batches before. The
    parameters hold these (see RunningStatistics); each pass over a batch adds its own to them. With `scale_bias`, a
    field of NVIDIA's fork, the layer has two more parameters, by which it multiplies and to which it adds.
    """

    traits = Traits(
        bottoms=1,
        tops=1,
        half=Half.SAME,
        reads="bottoms",
        reshapes_by_shape=True,
        copies_bottom="always",
        overwrites_gradient=True,
        held=Held.MEAN,
    )
    ignores_propagate_down = True
    affine_blobs: Sequence[Blob] = ()  # scale and shift, if the layer has them
    rule = placements.between(lambda layer, x: [1])  # sums over the workers where it needs those

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return param.batch_norm_param.HasField("use_global_stats") and not param.batch_norm_param.use_global_stats

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.batch_norm_param
        self.prepare(bottom[0], p.eps, p.use_global_stats if p.HasField("use_global_stats") else self.phase == pb.TEST)
        for shape in (self.channels,), (self.channels,), (1,):
            self.add_blob(*shape)
        self.statistics = RunningStatistics(self.engine, self.running_statistics, p.moving_average_fraction)
        if has_scale_and_bias(p):
            self._leave_statistics_alone(self.param.param)
        for index in range(len(self.blobs)):  # they are no weights: the solver must not touch them
            if index == len(self.param.param):
                self.param.param.add(lr_mult=0)
            elif self.param.param[index].lr_mult != 0:
                raise self.error(f"its statistics do not learn: param {index} must have lr_mult: 0")
        if has_scale_and_bias(p):
            self.add_affine((self.channels,), p, "scale_filler", "bias_filler")

    def _leave_statistics_alone(self, specs: Any) -> None:
        """Two specs are those of scale and bias. Others than 0 for statistics become 0, as in NVIDIA's fork.

        Of more specs the first two are those of scale and bias if only these learn: the order of 0.15.
        """
        learn = [bool(spec.lr_mult) for spec in specs]
        if len(specs) == 2 or (len(specs) > 3 and any(learn[:2]) and not any(learn[2:])):
            affine = [pb.ParamSpec.FromString(spec.SerializeToString()) for spec in specs[:2]]
            del specs[:]
            specs.extend([*[pb.ParamSpec()] * 3, *affine])
        elif any(learn[:3]):
            log.warning(f"layer {self.name}: its statistics do not learn: the lr_mult of params 0 to 2 counts as 0")
        for spec in specs[:3]:
            spec.lr_mult = spec.decay_mult = 0

    def in_own_order(self, stored: list[StoredBlob]) -> list[StoredBlob]:
        """NVIDIA's 0.15 has scale and bias before the statistics. Its blobs may have the shape (1, C, 1, 1)."""
        if not self.affine_blobs or len(stored) != len(self.blobs):
            return stored
        if math.prod(stored[-1].shape) == 1 < math.prod(stored[2].shape):
            stored = [*stored[2:], *stored[:2]]
        for own, blob in zip(self.blobs, stored, strict=True):
            if blob.shape == (1, own.count, 1, 1) and len(own.shape) == 1:
                blob.shape = own.shape
        return stored

    def prepare(self, bottom: Blob, eps: float, use_global_stats: bool) -> None:
        """Set up all but the parameters."""
        self.eps, self.use_global_stats = eps, use_global_stats
        if not use_global_stats:
            if self.context.workers.in_shards and not self.context.sync_batch_norm:
                self.refuse_split("takes mean and variance over each worker's samples (--bn local)")
            self.workers.run_shards_in_step()
            workers = self._workers()
            self.traits = replace(self.traits, needs_host=workers.size > 1 and not workers.sums_on_streams)
        self.channels = channels_of(bottom.shape)
        self.mean, self.variance = Blob(self.xp, (self.channels,)), Blob(self.xp, (self.channels,))

    def add_affine(self, shape: tuple[int, ...], p: Any, scale: str, shift: str) -> None:
        """Append scale and shift, filled by these fields of `p`, or with 1 and 0."""
        for field, value in (scale, 1), (shift, 0):
            self.add_blob(*shape, filler=filler_or(value, p, field))
        self.affine_blobs = self.blobs[-2:]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if not shape or channels_of(shape) != self.channels:
            raise self.error(f"has statistics for {self.channels} channels, but its bottom has the shape {shape}")
        top[0].reshape(*shape)
        self.count: float | Array = bottom[0].count // max(1, self.channels)

    @property
    def running_statistics(self) -> list[Blob]:
        return self.blobs[:3]

    @property
    def affine(self) -> tuple[Array, Array] | None:
        """Scale and shift, each (C,)."""
        if not self.affine_blobs:
            return None
        scale, shift = self.affine_blobs
        return scale.data.reshape(-1), shift.data.reshape(-1)

    @property
    def learned(self) -> list[Blob]:
        """Those of scale and shift that learn."""
        return [blob for blob in self.affine_blobs if self.param_propagate_down[self.blobs.index(blob)]]

    @property
    def folded(self) -> Affine:
        running = normalization(self.statistics.sums(), self.eps)
        return running.then(scaling(*self.affine)) if self.affine else running

    @property
    def differentiates_statistics(self) -> bool:
        return not self.use_global_stats

    def state_blobs(self) -> dict[str, Blob]:
        """The running statistics where each worker has its own, since a model has the mean over the workers."""
        if self.use_global_stats or self.context.sync_batch_norm or self.context.workers.size == 1:
            return {}
        return {str(index): blob for index, blob in enumerate(self.running_statistics)}

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.take_moments(bottom[0])
        x, y = with_channels(bottom[0].data), with_channels(top[0].data)
        self.engine.batch_norm_apply(x, y, self.normalizer)

    @property
    def normalizer(self) -> Normalizer:
        return Normalizer(self.mean.data, self.variance.data, self.eps, *(self.affine or (None, None)))

    def take_moments(self, bottom: Blob) -> None:
        """Write `mean` and `variance`: of all batches with use_global_stats, else of the batch of all workers, which
        are added to the running statistics."""
        if self.use_global_stats:
            return self.statistics.read(self.mean, self.variance)
        if not self.context.may_change():
            return None
        mean, variance, workers = self.mean.data, self.variance.data, self._workers()
        self.engine.batch_norm_moments(with_channels(bottom.data), mean, variance)
        if workers.size == 1:
            return self._add_to_statistics()
        count = bottom.count // max(1, self.channels)
        own = self.xp.concatenate([self.xp.full(1, count, mean.dtype), mean, variance])
        everyones = workers.gather_array(own)
        self.engine.merge_moments(everyones, mean, variance)
        counts = everyones[:, 0]
        self.count = counts.sum() if self.engine.asynchronous else float(counts.sum(dtype=self.xp.float64))
        return self._add_to_statistics()

    def _add_to_statistics(self) -> None:
        self.once(lambda: self.statistics.add(self.mean, self.variance, self.count))

    @property
    def whole(self) -> Whole | None:
        """The batch of all workers, if this one has only a part of it. All send float64, or float32 on GPUs."""
        workers, dtype = self._workers(), self.xp.float32 if self.engine.asynchronous else self.xp.float64
        if workers.size == 1:
            return None
        return Whole(self.count, lambda sums: workers.sum_array(sums.astype(dtype, copy=False)))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom if self.differentiates_statistics or self.learned else []

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        learned, mean, dy = self.learned, self.mean.data, with_channels(top[0].diff)
        dx = with_channels(bottom[0].diff if propagate_down[0] else self.xp.empty_like(bottom[0].data))
        inverse = 1 / self.xp.sqrt(self.variance.data + self.eps)
        if not self.differentiates_statistics and not learned:
            factor = self.affine[0] * inverse if self.affine else inverse
            with self.engine.in_float32([dy], [dx]) as (dy_, dx_):
                self.xp.multiply(dy_, factor.reshape(-1, *(1,) * (dy.ndim - 2)), out=dx_)
            return
        x = with_channels(bottom[0].data)
        gradients = list(self.xp.empty((len(self.affine_blobs), self.channels), self.xp.float32))
        if self.differentiates_statistics:
            self.engine.batch_norm_train_backward(x, dy, dx, self.normalizer, gradients, self.whole)
        else:
            assert self.affine is not None
            self.engine.scale_channels_backward(x, dy, dx, self.affine[0] * inverse, *gradients)
            gradients[0] = (gradients[0] - mean * gradients[1]) * inverse
        for blob, gradient in zip(self.affine_blobs, gradients, strict=True):
            if blob in learned:
                blob.diff[...] += gradient.reshape(blob.shape)

    def _workers(self) -> Workers:
        """The workers whose batches are one batch to this layer."""
        return self.workers if self.context.sync_batch_norm else Workers()


def has_scale_and_bias(p: Any) -> bool:
    """Whether a layer with this BatchNormParameter has the two parameters of NVIDIA's fork."""
    return bool(p.scale_bias or p.HasField("scale_filler") or p.HasField("bias_filler"))


def channels_of(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) > 1 else 1


def with_channels(x: Array) -> Array:
    """A single axis counts as the batch, with one channel."""
    return x[:, None] if x.ndim == 1 else x
