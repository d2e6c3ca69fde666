"""Losses: SoftmaxWithLoss, SigmoidCrossEntropyLoss, EuclideanLoss."""

from __future__ import annotations

import math
from typing import Any

from fcaffe import log
from fcaffe.layers.labels import check_label_count, read_labels
from fcaffe.layers.reshape import copy_values
from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import Count, Layer, register
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb

FULL, VALID, BATCH_SIZE, NONE = (getattr(pb.LossParameter, name) for name in ("FULL", "VALID", "BATCH_SIZE", "NONE"))
SMALLEST = 1.1754943508222875e-38  # FLT_MIN: probabilities below it count as this before the logarithm


class LossLayer(Layer):
    """Base: a scalar top of loss weight 1, from predictions and labels that share their first axis.

    Labels get no gradient.
    """

    bottoms: Count = 2
    tops: Count = 1
    auto_tops = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.param.loss_weight:
            self.param.loss_weight.append(1)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].shape[:1] != bottom[1].shape[:1]:
            raise self.error(f"its bottoms must agree in the first dimension: {self.named_shapes(bottom)}")
        top[0].reshape()

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index != 1

    def refuse_label_gradient(self, propagate_down: list[bool]) -> None:
        if propagate_down[1]:
            raise self.error("cannot give its label bottom a gradient; set propagate_down: false for it")

    def count_samples(self, bottom: list[Blob]) -> float:
        """N, the first dimension, over all workers; an empty batch counts as 1, so that its loss is 0."""
        return max(1.0, self.context.workers.sum(bottom[0].shape[0]))

    def ignored_label(self) -> int | None:
        p = self.param.loss_param
        return p.ignore_label if p.HasField("ignore_label") else None

    def read_normalization(self, default: int) -> int:
        """The mode of `divisor` that loss_param asks for."""
        mode = normalization(self.param.loss_param, default)
        if mode == VALID and self.ignored_label() is not None:
            self.refuse_shards(
                "divides by the number of labels in the whole batch that are not ignored (normalization: BATCH_SIZE or "
                "FULL does not)"
            )
        return mode


def normalization(p: Any, default: int) -> int:
    """The mode that a LossParameter asks for, in its present or in its old form (`normalize`)."""
    if not p.HasField("normalization") and p.HasField("normalize"):
        return VALID if p.normalize else BATCH_SIZE
    return p.normalization if p.HasField("normalization") else default


def divisor(workers: Workers, mode: int, positions: int, valid: int, batch: int) -> float:
    """What a loss is divided by: all positions, those not ignored, the batch or nothing; never less than 1.

    They count over all workers, so that the losses of the workers add up to that of the whole batch.
    """
    if mode == NONE:
        return 1.0
    return max(1.0, workers.sum({FULL: positions, VALID: valid, BATCH_SIZE: batch}[mode]))


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(LossLayer):
    """top = -log(softmax(x)[label]), summed over all positions and normalised (VALID unless loss_param says else).

    Bottoms: scores, with the classes on softmax_param.axis; one label per position of the other axes.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        log.making_layer(self.name)  # Caffe has a Softmax layer of this name in here
        self.mode = self.read_normalization(VALID)
        self.probability = Blob(self.xp, (), channels_last=True)

    def class_axis(self) -> int:
        return self.param.softmax_param.axis

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.axis = bottom[0].canonical_axis(self.class_axis())
        check_label_count(self, bottom, self.axis)
        self.probability.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, probability = self.xp, self.probability.data
        self.engine.softmax_forward(bottom[0].data, probability, self.axis)
        labels, ignored = read_labels(self, bottom, self.axis, self.ignored_label())
        self.labels = xp.expand_dims(labels, self.axis)
        self.ignored = None if ignored is None else xp.expand_dims(ignored, self.axis)
        losses = self.losses(probability, bottom)
        valid = labels.size
        if self.ignored is not None:
            losses = xp.where(self.ignored, 0, losses)
            valid -= int(self.ignored.sum())
        workers = self.context.workers
        self.divisor = divisor(workers, self.mode, labels.size, valid, math.prod(bottom[0].shape[: self.axis]))
        top[0].data[...] = losses.sum() / self.divisor

    def losses(self, probability: Array, bottom: list[Blob]) -> Array:
        """Of each position; the axis of the classes has the length 1."""
        true = self.xp.take_along_axis(probability, self.labels, self.axis)
        return -self.xp.log(self.xp.maximum(true, SMALLEST))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.refuse_label_gradient(propagate_down)
        if not propagate_down[0]:
            return
        dx = bottom[0].diff
        self.write_gradients(self.probability.data, bottom, float(top[0].diff) / self.divisor, dx)
        if self.ignored is not None:
            self.xp.copyto(dx, 0, where=self.ignored)

    def write_gradients(self, probability: Array, bottom: list[Blob], scale: float, dx: Array) -> None:
        """dx = scale times the gradient of each position's loss."""
        xp = self.xp
        xp.multiply(probability, scale, out=dx)
        true = xp.take_along_axis(probability, self.labels, self.axis)
        xp.put_along_axis(dx, self.labels, scale * (true - 1), self.axis)


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    """top = -(t log s(x) + (1 - t) log(1 - s(x))), s the sigmoid, summed and normalised (BATCH_SIZE by default).

    Bottoms: scores x, and targets t in [0, 1] of the same count; ignore_label is compared with t cut to an integer.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.mode = self.read_normalization(BATCH_SIZE)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise self.error(f"inputs must have the same count: {self.named_shapes(bottom)}")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp = self.xp
        x, target = bottom[0].data, bottom[1].data.reshape(bottom[0].shape)
        losses = xp.log1p(xp.exp(-abs(x))) - x * (target - (x >= 0))
        valid = x.size
        label = self.ignored_label()
        self.ignored = None if label is None else target.astype(xp.int64) == label
        if self.ignored is not None:
            losses = xp.where(self.ignored, 0, losses)
            valid -= int(self.ignored.sum())
        self.divisor = divisor(self.context.workers, self.mode, x.size, valid, x.shape[0])
        top[0].data[...] = losses.sum() / self.divisor

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.refuse_label_gradient(propagate_down)
        if not propagate_down[0]:
            return
        x, dx = bottom[0].data, bottom[0].diff
        self.xp.tanh(0.5 * x, out=dx)
        dx *= 0.5
        dx += 0.5
        dx -= bottom[1].data.reshape(x.shape)
        dx *= float(top[0].diff) / self.divisor
        if self.ignored is not None:
            self.xp.copyto(dx, 0, where=self.ignored)


@register("EuclideanLoss")
class EuclideanLoss(LossLayer):
    """top = sum of (a - b)^2 / (2 N), N the first dimension. Both bottoms can have a gradient."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.difference = Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise self.error(f"Inputs must have the same dimension: {self.named_shapes(bottom)}")
        self.difference.reshape(*bottom[0].shape)

    def allow_force_backward(self, bottom_index: int) -> bool:
        return True

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        a, difference = bottom[0].data, self.difference.data
        self.xp.subtract(a, bottom[1].data.reshape(a.shape), out=difference)
        self.samples = self.count_samples(bottom)
        top[0].data[...] = (difference * difference).sum() / (2 * self.samples)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        scale = float(top[0].diff) / self.samples
        for blob, down, sign in zip(bottom, propagate_down, (1, -1), strict=True):
            if down:
                copy_values(sign * scale * self.difference.data, blob.diff)
