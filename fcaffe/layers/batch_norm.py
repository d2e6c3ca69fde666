"""Batch normalisation (Ioffe and Szegedy, 2015), without the scale and shift, which are a Scale layer's."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.engines.normalization import Normalizer, Whole
from fcaffe.layers.running_statistics import RunningStatistics
from fcaffe.net import Array, Blob, Half, Layer, Traits, register
from fcaffe.net.state import Held, State
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb


@register("BatchNorm")
class BatchNorm(Layer):
    """top = (x - mean) / sqrt(variance + eps), per channel (axis 1).

    Mean and variance are the batch's, or, with use_global_stats (the default of TEST), those of all batches before. The
    parameters hold these (see RunningStatistics); each pass over a batch adds its own to them.
    """

    traits = Traits(
        bottoms=1, tops=1, half=Half.SAME, reshapes_by_shape=True, repeatable=True, learns=False, held=Held.MEAN
    )
    ignores_propagate_down = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.batch_norm_param
        self.eps = p.eps
        self.use_global_stats = p.use_global_stats if p.HasField("use_global_stats") else self.phase == pb.TEST
        if not self.use_global_stats:
            self.refuse_shards("takes mean and variance over the whole batch (use_global_stats: true does not)")
        self.channels = bottom[0].shape[1] if len(bottom[0].shape) > 1 else 1
        for shape in (self.channels,), (self.channels,), (1,):
            self.add_blob(*shape)
        self.statistics = RunningStatistics(self.engine, self.blobs, p.moving_average_fraction)
        for index in range(len(self.blobs)):  # they are no weights: the solver must not touch them
            if index == len(self.param.param):
                self.param.param.add(lr_mult=0)
            elif self.param.param[index].lr_mult != 0:
                raise self.error(f"its statistics do not learn: param {index} must have lr_mult: 0")
        self.mean, self.variance = Blob(self.xp, (self.channels,)), Blob(self.xp, (self.channels,))
        self.memory = Blob(self.xp)  # what batch_norm_train leaves to its backward
        self.traits = replace(self.traits, by_sample=self.use_global_stats)
        if not self.use_global_stats:
            self.bottom_copy = Blob(self.xp, (), channels_last=True)
            self.traits = replace(self.traits, needs_host=self._workers().size > 1)  # sums go through the host

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) > 1 and shape[1] != self.channels:
            raise self.error(f"has statistics for {self.channels} channels, but its bottom has the shape {shape}")
        top[0].reshape(*shape)
        self.memory.reshape(int(self.engine.batch_norm_memory * top[0].count) + 1)
        self.count: float = bottom[0].count // max(1, self.channels)

    def state(self) -> State:
        """The running statistics where each worker has its own, since a model has the mean over the workers."""
        if self.use_global_stats or self.context.sync_batch_norm or self.context.workers.size == 1:
            return {}
        return self.statistics.state()

    def restore_state(self, state: State) -> None:
        if self.state():
            self.statistics.restore_state(state)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.take_moments(bottom[0])
        self.forward_again(bottom, top)
        self.add_to_statistics()

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = with_channels(bottom[0].data), with_channels(top[0].data)
        if self.use_global_stats:
            self.statistics.read(self.mean, self.variance)
            self.engine.batch_norm_apply(x, y, self.normalizer())
        else:
            x = with_channels(self.keep_bottom(bottom, top).data)
            self.engine.batch_norm_train(x, y, self.normalizer(), self.memory.data)

    def normalizer(self) -> Normalizer:
        return Normalizer(self.mean.data, self.variance.data, self.eps)

    def take_moments(self, bottom: Blob) -> None:
        """Once for each batch: write `mean` and `variance` of that of all workers; not with use_global_stats."""
        if self.use_global_stats:
            return
        mean, variance, workers = self.mean.data, self.variance.data, self._workers()
        self.engine.batch_norm_moments(with_channels(bottom.data), mean, variance)
        if workers.size == 1:
            return
        count = bottom.count // max(1, self.channels)
        own = self.xp.concatenate([self.xp.full(1, count, mean.dtype), mean, variance])
        everyones = workers.gather_array(own)
        self.engine.merge_moments(everyones, mean, variance)
        if self.engine.asynchronous:  # without waiting for it
            self.count = workers.sum(count)
        else:
            self.count = float(everyones[:, 0].sum(dtype=self.xp.float64))

    def add_to_statistics(self) -> None:
        """Once for each batch, after `mean` and `variance` have become its own."""
        if not self.use_global_stats:
            self.statistics.add(self.mean, self.variance, self.count)

    @property
    def whole(self) -> Whole | None:
        """The batch of all workers, if this one has but a part of it.

        Shares of other sizes may be added up in other ways, but a message is of one type: of that which keeps the most
        digits, or on a GPU of that which is added up there.
        """
        workers, dtype = self._workers(), self.xp.float32 if self.engine.asynchronous else self.xp.float64
        if workers.size == 1:
            return None
        return Whole(self.count, lambda sums: workers.sum_array(sums.astype(dtype, copy=False)))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [] if self.use_global_stats else [self.kept_bottom(bottom, top), self.memory]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, dy = with_channels(bottom[0].diff), with_channels(top[0].diff)
        if self.use_global_stats:
            deviation = self.xp.sqrt(self.variance.data + self.eps)
            with self.engine.in_float32([dy], [dx]) as (dy_, dx_):
                self.xp.divide(dy_, deviation.reshape(-1, *(1,) * (dy.ndim - 2)), out=dx_)
        else:
            x = with_channels(self.kept_bottom(bottom, top).data)
            self.engine.batch_norm_train_backward(x, dy, dx, self.normalizer(), (), self.memory.data, self.whole)

    def _workers(self) -> Workers:
        """Those whose batches are one batch to this layer."""
        return self.context.workers if self.context.sync_batch_norm else Workers()


def with_channels(x: Array) -> Array:
    """A single axis counts as the batch, with one channel."""
    return x[:, None] if x.ndim == 1 else x
