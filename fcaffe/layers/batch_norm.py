"""Batch normalisation (Ioffe and Szegedy, 2015), without the scale and shift, which are a Scale layer's."""

from __future__ import annotations

from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import Layer, register
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb


@register("BatchNorm")
class BatchNorm(Layer):
    """top = (x - mean) / sqrt(variance + eps), per channel (axis 1).

    Parameters: running sums of the means (C,), of the unbiased variances (C,), and of their weights (1,). Each pass
    over a batch multiplies them by moving_average_fraction before it adds its own. Mean and variance are the batch's,
    or, with use_global_stats (the default of TEST), the sums divided by the third blob.
    """

    bottoms = 1
    tops = 1

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.batch_norm_param
        self.use_global_stats = p.use_global_stats if p.HasField("use_global_stats") else self.phase == pb.TEST
        self.channels = bottom[0].shape[1] if len(bottom[0].shape) > 1 else 1
        for shape in (self.channels,), (self.channels,), (1,):
            self.add_blob(*shape)
        for index in range(len(self.blobs)):  # they are no weights: the solver must not touch them
            if index == len(self.param.param):
                self.param.param.add(lr_mult=0)
            elif self.param.param[index].lr_mult != 0:
                raise self.error(f"its statistics do not learn: param {index} must have lr_mult: 0")
        self.normalized = Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) > 1 and shape[1] != self.channels:
            raise self.error(f"has statistics for {self.channels} channels, but its bottom has the shape {shape}")
        top[0].reshape(*shape)
        self.normalized.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = _with_channels(bottom[0].data), _with_channels(top[0].data)
        if self.use_global_stats:
            total = float(self.blobs[2].data[0])
            mean, variance = (blob.data * (1 / total if total else 0.0) for blob in self.blobs[:2])
        else:
            workers = self._workers()
            self.count = workers.sum(x.size // self.channels)
            mean, variance = self.engine.batch_statistics(x, self.count, workers.sum_array)
            if self.count:
                self._add_to_statistics(mean, variance, self.count)
        self.deviation = self.xp.sqrt(variance + self.param.batch_norm_param.eps)
        self.engine.batch_norm_forward(x, y, mean, self.deviation)
        if not self.use_global_stats:  # backward needs them, and a layer in place behind this one overwrites the top
            self.normalized.data[...] = top[0].data

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dy, dx = _with_channels(top[0].diff), _with_channels(bottom[0].diff)
        if self.use_global_stats:
            self.xp.divide(dy, self.deviation.reshape(-1, *(1,) * (dy.ndim - 2)), out=dx)
        else:
            normalized, over_workers = _with_channels(self.normalized.data), self._workers().sum_array
            self.engine.batch_norm_backward(normalized, dy, dx, self.deviation, self.count, over_workers)

    def _workers(self) -> Workers:
        """Those whose batches are one batch to this layer."""
        return self.context.workers if self.context.sync_batch_norm else Workers()

    def _add_to_statistics(self, mean: Array, variance: Array, samples: float) -> None:
        unbiased = samples / (samples - 1) if samples > 1 else 1.0
        for blob, value in zip(self.blobs, (mean, unbiased * variance, 1.0), strict=True):
            sums = blob.data
            sums *= self.param.batch_norm_param.moving_average_fraction
            sums += value


def _with_channels(x: Array) -> Array:
    """A single axis counts as the batch, with one channel."""
    return x[:, None] if x.ndim == 1 else x
