"""Batch normalisation (Ioffe and Szegedy, 2015), without the scale and shift, which are a Scale layer's."""

from __future__ import annotations

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.scale import Scale
from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import Half, Layer, register
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
    half = Half.SAME
    reshapes_by_shape = True
    absorbs_backward = True
    repeatable = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.batch_norm_param
        self.use_global_stats = p.use_global_stats if p.HasField("use_global_stats") else self.phase == pb.TEST
        if not self.use_global_stats:
            self.refuse_shards("takes mean and variance over the whole batch (use_global_stats: true does not)")
        self.channels = bottom[0].shape[1] if len(bottom[0].shape) > 1 else 1
        for shape in (self.channels,), (self.channels,), (1,):
            self.add_blob(*shape)
        for index in range(len(self.blobs)):  # they are no weights: the solver must not touch them
            if index == len(self.param.param):
                self.param.param.add(lr_mult=0)
            elif self.param.param[index].lr_mult != 0:
                raise self.error(f"its statistics do not learn: param {index} must have lr_mult: 0")
        self.kept = Blob(self.xp, (), channels_last=True)  # x, or with several workers what became of it
        self.mean, self.variance = Blob(self.xp, (self.channels,)), Blob(self.xp, (self.channels,))
        self.memory = Blob(self.xp)
        self.needs_host = not self.use_global_stats and self._workers().size > 1  # which add up through the host
        self._swapped: Blob | None = None  # with whom `kept` has changed places

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) > 1 and shape[1] != self.channels:
            raise self.error(f"has statistics for {self.channels} channels, but its bottom has the shape {shape}")
        top[0].reshape(*shape)
        self.kept.reshape(*shape)
        self.memory.reshape(top[0].count // 4 + 1)

    def absorbs(self, behind: list[Layer]) -> int:
        alone = self._workers().size == 1 and (self.context.inference or not self.use_global_stats)
        if not alone or not isinstance(behind[0], Scale) or not behind[0].is_per_channel:
            return 0
        return 1 + (len(behind) > 1 and is_plain_relu(behind[1]))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.use_global_stats:
            self._forward_batch(bottom[0], top[0])
            return
        total = self.blobs[2].data
        none = total == 0
        factor = ~none / (total + none)
        for blob, sums in zip((self.mean, self.variance), self.blobs, strict=False):
            self.xp.multiply(sums.data, factor, out=blob.data)
        x, y = _with_channels(bottom[0].data), _with_channels(top[0].data)
        self.engine.batch_norm_apply(x, y, self.mean.data, self.variance.data, self.affine, self.eps, self.with_relu)

    def _forward_batch(self, bottom: Blob, top: Blob) -> None:
        """By the mean and variance of the batch."""
        workers = self._workers()
        mean, variance = self.mean.data, self.variance.data
        if workers.size > 1:
            x, y = _with_channels(bottom.data), _with_channels(top.data)
            if not self.context.recomputing:
                self.count = workers.sum(x.size // self.channels)
                mean[...], variance[...] = self.engine.batch_statistics(x, self.count, workers.sum_array)
            self.engine.batch_norm_forward(x, y, mean, self.xp.sqrt(variance + self.eps))
            self.kept.data[...] = top.data
        else:
            x = _with_channels(self._keep(bottom, top).data)
            self.count = x.size // self.channels
            self.engine.batch_norm_train(
                x,
                _with_channels(top.data),
                mean,
                variance,
                self.affine,
                self.eps,
                self.with_relu,
                self.memory.data,
            )
        if self.count and not self.context.recomputing:
            self._add_to_statistics(mean, variance, self.count)

    def _keep(self, bottom: Blob, top: Blob) -> Blob:
        """A blob with the values of the bottom that outlives this pass."""
        if top is not bottom:
            return bottom
        bottom.swap_data(self.kept)
        self._swapped = None if self._swapped else bottom
        return self.kept

    def follow_types(self, bottom: list[Blob]) -> None:
        self.kept.set_dtype(bottom[0].dtype)

    def read_by_backward(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        reads = self._alone and not self.use_global_stats and top[0] is not bottom[0]
        return bottom if reads else []

    def kept_for_backward(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        if self.use_global_stats:
            return []
        return [self.memory] if self._alone else [self.kept]

    def swaps_with(self, bottom: list[Blob], top: list[Blob]) -> Blob | None:
        swaps = self._alone and not self.use_global_stats and top[0] is bottom[0]
        return self.kept if swaps else None

    @property
    def _alone(self) -> bool:
        return self._workers().size == 1

    def rewind(self) -> None:
        if self._swapped:
            self._swapped.swap_data(self.kept)
            self._swapped = None

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0] and not self.followers:
            return
        dy, dx = _with_channels(top[0].diff), _with_channels(bottom[0].diff)
        mean, variance = self.mean.data, self.variance.data
        if self.use_global_stats:
            deviation = self.xp.sqrt(variance + self.eps)
            self.xp.divide(dy, deviation.reshape(-1, *(1,) * (dy.ndim - 2)), out=dx)
        elif (workers := self._workers()).size > 1:
            normalized, deviation = _with_channels(self.kept.data), self.xp.sqrt(variance + self.eps)
            self.engine.batch_norm_backward(normalized, dy, dx, deviation, self.count, workers.sum_array)
        else:
            x = _with_channels((self.kept if top[0] is bottom[0] else bottom[0]).data)
            diffs = [blob.diff_to_add() for blob in (self.followers[0].blobs if self.followers else ())]
            gradients = tuple(self.xp.empty_like(diff) if add else diff for diff, add in diffs)
            self.engine.batch_norm_train_backward(
                x, dy, dx, mean, variance, self.affine, gradients, self.eps, self.with_relu, self.memory.data
            )
            for (diff, add), gradient in zip(diffs, gradients, strict=True):
                if add:
                    diff += gradient

    @property
    def eps(self) -> float:
        return self.param.batch_norm_param.eps

    @property
    def affine(self) -> tuple[Array, Array] | None:
        """Scale and bias of the Scale layer that this one stands in for."""
        return (self.followers[0].blobs[0].data, self.followers[0].blobs[1].data) if self.followers else None

    @property
    def with_relu(self) -> bool:
        return len(self.followers) > 1

    def _workers(self) -> Workers:
        """Those whose batches are one batch to this layer."""
        return self.context.workers if self.context.sync_batch_norm else Workers()

    def _add_to_statistics(self, mean: Array, variance: Array, samples: float) -> None:
        unbiased = samples / (samples - 1) if samples > 1 else 1.0
        fraction = self.param.batch_norm_param.moving_average_fraction
        sums = tuple(blob.data for blob in self.blobs)
        self.engine.add_to_statistics(sums, mean, variance, unbiased, fraction)


def _with_channels(x: Array) -> Array:
    """A single axis counts as the batch, with one channel."""
    return x[:, None] if x.ndim == 1 else x
