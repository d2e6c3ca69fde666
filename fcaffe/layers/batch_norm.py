"""Batch normalisation (Ioffe and Szegedy, 2015), without the scale and shift, which are a Scale layer's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.scale import Scale
from fcaffe.layers.split import Split
from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import Half, Layer, register
from fcaffe.net.state import Held, State
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb

if TYPE_CHECKING:
    from fcaffe.net.graph import Node


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
        self.memory.reshape(int(self.engine.batch_norm_memory * top[0].count) + 1)

    held = Held.MEAN

    def state(self) -> State:
        """The running statistics where each worker has its own, since a model has the mean over the workers."""
        if self.use_global_stats or self.context.sync_batch_norm or self.context.workers.size == 1:
            return {}
        return {str(index): np.array(self.engine.to_numpy(blob.data)) for index, blob in enumerate(self.blobs)}

    def restore_state(self, state: State) -> None:
        if not self.state():
            return
        for index, blob in enumerate(self.blobs):
            blob.data[...] = self.engine.from_numpy(state[str(index)].reshape(blob.shape))

    def absorbs(self, behind: list[Layer]) -> int:
        alone = self._workers().size == 1 and (self.context.inference or not self.use_global_stats)
        if not alone or not isinstance(behind[0], Scale) or not behind[0].is_per_channel:
            return 0
        if len(behind) > 1 and is_plain_relu(behind[1]):
            return 2
        return 1 + (self._absorbs_sum(behind[1:]) if self.engine.fuses_residuals else 0)

    def _absorbs_sum(self, behind: list[Layer]) -> int:
        """How many of these: a sum with another blob, its ReLU, and the Split that adds up two gradients of it."""
        if len(behind) < 2 or not (isinstance(behind[0], Eltwise) and behind[0].adds_two and is_plain_relu(behind[1])):
            return 0
        return 2 + (len(behind) > 2 and isinstance(behind[2], Split) and len(behind[2].param.top) == 2)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        for node in self.followers:
            node.reshape()
        if not self.use_global_stats:
            self._forward_batch(bottom[0], top[0])
            return
        total = self.blobs[2].data
        none = total == 0
        factor = ~none / (total + none)
        for blob, sums in zip((self.mean, self.variance), self.blobs, strict=False):
            self.xp.multiply(sums.data, factor, out=blob.data)
        self._apply(_with_channels(bottom[0].data), top[0])

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
            if self.sum:
                self.engine.batch_norm_moments(x, mean, variance)
                self._apply(x, top)
            else:
                y, affine, eps, memory = _with_channels(top.data), self.affine, self.eps, self.memory.data
                self.engine.batch_norm_train(x, y, mean, variance, affine, eps, self.with_relu, memory)
        if self.count and not self.context.recomputing:
            self._add_to_statistics(mean, variance, self.count)

    def _apply(self, x: Array, top: Blob) -> None:
        """Normalise x by `mean` and `variance`, into the top or that of the sum."""
        statistics = self.mean.data, self.variance.data, self.affine, self.eps
        if self.sum:
            other, y = _with_channels(self._addend.data), _with_channels(self.sum.tops[0].data)
            self.engine.batch_norm_add_relu(x, other, y, *statistics)
        else:
            self.engine.batch_norm_apply(x, _with_channels(top.data), *statistics, self.with_relu)

    def _keep(self, bottom: Blob, top: Blob) -> Blob:
        """A blob with the values of the bottom that outlives this pass."""
        if not self._swaps(bottom, top):
            return bottom
        bottom.swap_data(self.kept)
        self._swapped = None if self._swapped else bottom
        return self.kept

    def follow_types(self, bottom: list[Blob]) -> None:
        self.kept.set_dtype(bottom[0].dtype)

    def read_by_backward(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        if not self._alone or self.use_global_stats:
            return []
        if self.sum:
            return [bottom[0], top[0]]
        return [] if self._swaps(bottom[0], top[0]) else bottom

    def kept_for_backward(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        if self.use_global_stats:
            return []
        return [self.memory] if self._alone else [self.kept]

    def swaps_with(self, bottom: list[Blob], top: list[Blob]) -> Blob | None:
        swaps = self._alone and not self.use_global_stats and self._swaps(bottom[0], top[0])
        return self.kept if swaps else None

    def _swaps(self, bottom: Blob, top: Blob) -> bool:
        """Whether forward writes where the bottom is, which it has to keep."""
        return top is bottom and not self.sum

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
        mean, variance, dx = self.mean.data, self.variance.data, _with_channels(bottom[0].diff)
        if self.sum:
            self._backward_of_sum(_with_channels(bottom[0].data), dx)
            return
        dy = _with_channels(top[0].diff)
        if self.use_global_stats:
            deviation = self.xp.sqrt(variance + self.eps)
            self.xp.divide(dy, deviation.reshape(-1, *(1,) * (dy.ndim - 2)), out=dx)
        elif (workers := self._workers()).size > 1:
            normalized, deviation = _with_channels(self.kept.data), self.xp.sqrt(variance + self.eps)
            self.engine.batch_norm_backward(normalized, dy, dx, deviation, self.count, workers.sum_array)
        else:
            x = _with_channels((self.kept if self._swaps(bottom[0], top[0]) else bottom[0]).data)
            with self._gradients_of_scale() as gradients:
                numbers = mean, variance, self.affine, gradients, self.eps, self.with_relu, self.memory.data
                self.engine.batch_norm_train_backward(x, dy, dx, *numbers)

    def _backward_of_sum(self, x: Array, dx: Array) -> None:
        assert self.sum
        y, dother = _with_channels(self.sum.tops[0].data), _with_channels(self._addend.diff)
        dys = [_with_channels(blob.diff) for blob in self.followers[-1].tops]
        with self._gradients_of_scale() as gradients:
            numbers = self.mean.data, self.variance.data, self.affine, gradients, self.eps, self.memory.data
            self.engine.batch_norm_add_relu_backward(x, y, dys, dother, dx, *numbers)

    @contextlib.contextmanager
    def _gradients_of_scale(self) -> Iterator[tuple[Array, ...]]:
        """Where to write the gradients of the Scale layer that this one stands in for."""
        diffs = [blob.diff_to_add() for blob in (self.followers[0].layer.blobs if self.followers else ())]
        gradients = tuple(self.xp.empty_like(diff) if add else diff for diff, add in diffs)
        yield gradients
        for (diff, add), gradient in zip(diffs, gradients, strict=True):
            if add:
                diff += gradient

    @property
    def eps(self) -> float:
        return self.param.batch_norm_param.eps

    @property
    def affine(self) -> tuple[Array, Array] | None:
        """Scale and bias of the Scale layer that this one stands in for."""
        if not self.followers:
            return None
        scale, shift = self.followers[0].layer.blobs
        return scale.data, shift.data

    @property
    def with_relu(self) -> bool:
        """Whether what follows the Scale layer is a ReLU in place."""
        return len(self.followers) == 2

    @property
    def sum(self) -> Node | None:
        """The Eltwise that this one stands in for, together with its ReLU."""
        return self.followers[1] if len(self.followers) > 2 else None

    @property
    def _addend(self) -> Blob:
        """What the sum adds to the normalised blob."""
        assert self.sum
        first, second = self.sum.bottoms
        return second if first is self.followers[0].tops[0] else first

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
