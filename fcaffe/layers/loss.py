"""Losses: SoftmaxWithLoss, SigmoidCrossEntropyLoss, EuclideanLoss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fcaffe import log
from fcaffe.engines.elementwise import FLT_MIN
from fcaffe.layers.c_order import copy_values
from fcaffe.layers.labels import check_label_count, read_labels, total_of_labels
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register
from fcaffe.proto import caffe_pb2 as pb

FULL, VALID, BATCH_SIZE, NONE, PRE_FIXED = (
    getattr(pb.LossParameter, name) for name in ("FULL", "VALID", "BATCH_SIZE", "NONE", "PRE_FIXED")
)


class FromForward:
    """An attribute that forward sets and backward reads; LayerError where there was no forward pass."""

    def __get__(self, layer: Any, owner: type) -> Any:
        raise layer.error("cannot go backward, for it has not gone forward yet; run a forward pass first")


class LossLayer(Layer):
    """Base: a scalar top of loss weight 1, from predictions and labels that share their first axis."""

    traits = Traits(bottoms=2, tops=1, auto_tops=True, labels=(1,))
    rule = placements.summed
    counts_by_default = True  # has the loss weight 1 without loss_weight
    knows_pre_fixed = False  # supports R-FCN's normalization: PRE_FIXED
    mode: int  # of the divisor, where there is a choice
    samples: Any = FromForward()  # by whose number, as a float, the loss was divided

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.param.loss_weight:
            return
        if self.counts_by_default:
            self.param.loss_weight.append(1)
        else:
            problem = "without loss_weight its loss does not count, as in its fork; set loss_weight: 1"
            log.warning(str(self.error(problem)))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].shape[:1] != bottom[1].shape[:1]:
            raise self.error(f"its bottoms must agree in the first dimension: {self.named_shapes(bottom)}")
        top[0].reshape()

    def count_samples(self, bottom: list[Blob]) -> float:
        """N, the first dimension, over all workers; an empty batch counts as 1, so that its loss is 0."""
        return max(1.0, self.over_workers(bottom[0].shape[0], bottom[0]))

    def ignored_label(self) -> int | None:
        p = self.param.loss_param
        return p.ignore_label if p.HasField("ignore_label") else None

    def read_normalization(self, default: int) -> int:
        """The mode of `divisor` that loss_param asks for."""
        mode = normalization(self.param.loss_param, default)
        if mode == PRE_FIXED and not self.knows_pre_fixed:
            raise self.error(
                "normalization: PRE_FIXED belongs to the OHEM losses of R-FCN; use SoftmaxWithLossOHEM or "
                "SmoothL1LossOHEM, or set normalization: NONE and divide loss_weight by pre_fixed_normalizer"
            )
        if mode == VALID and self.ignored_label() is not None:
            self.workers.run_shards_in_step()
        return mode

    def counts_over_workers(self) -> bool:
        """Whether the workers exchange the divisor in each pass."""
        return self.mode == VALID and self.ignored_label() is not None and self.workers.size > 1


def normalization(p: Any, default: int) -> int:
    """The mode that a LossParameter asks for, in its present or in its old form (`normalize`)."""
    if not p.HasField("normalization") and p.HasField("normalize"):
        return VALID if p.normalize else BATCH_SIZE
    return p.normalization if p.HasField("normalization") else default


def divisor(layer: LossLayer, labels: Blob, valid: int | Array, batch: int) -> float | Array:
    """What a loss is divided by: the number of labels, of those not ignored, of the batch, a number that the prototxt
    gives, or nothing; at least 1.

    They count over all workers, so that the losses of the workers add up to that of the whole batch. `valid` may be an
    array without axes; see `total_of_labels`.
    """
    if layer.mode == NONE:
        return 1.0
    if layer.mode == PRE_FIXED:
        return max(1.0, layer.param.loss_param.pre_fixed_normalizer)
    return total_of_labels(layer, {FULL: labels.count, VALID: valid, BATCH_SIZE: batch}[layer.mode], labels)


class SoftmaxWithLoss(LossLayer):
    """top = -log(softmax(x)[label]), summed over all positions and normalised (VALID unless loss_param says else).

    Bottoms: scores, with the classes on softmax_param.axis; one label per position of the other axes.
    """

    traits = replace(LossLayer.traits, half=Half.FIRST)
    divisor: Any = FromForward()  # of the loss, a float; None: the number of positions that count
    rule = placements.positions_summed(lambda layer: layer.class_axis())

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        log.making_layer(self.name)  # Caffe has a Softmax layer of this name in here
        self.mode = self.read_normalization(VALID)
        self.traits = replace(self.traits, needs_host=self.traits.needs_host or self.counts_over_workers())
        self.probability = Blob(self.xp, (), channels_last=True)
        self.valid = Blob(self.xp)  # how many positions count

    def class_axis(self) -> int:
        return self.param.softmax_param.axis

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.axis = bottom[0].canonical_axis(self.class_axis())
        check_label_count(self, bottom, self.axis)
        self.probability.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        classes, skipped, wrong = self._classes(bottom)
        xp, probability, valid = self.xp, self.probability.data, self.valid.data
        self.engine.softmax_forward(self.engine.as_float32(bottom[0].data), probability, self.axis)
        true = xp.take_along_axis(probability, classes, self.axis)
        losses = xp.where(wrong, xp.float32("nan"), -xp.log(xp.maximum(true, FLT_MIN)))
        valid[...] = losses.size
        if skipped is not None:
            losses = xp.where(skipped, 0, losses)
            valid -= skipped.sum()
        counts = self.mode == VALID and self.ignored_label() is not None
        if counts and self.workers.size == 1:
            self.divisor = None
        else:
            batch = math.prod(bottom[0].shape[: self.axis])
            self.divisor = divisor(self, bottom[1], valid if counts else bottom[1].count, batch)
        top[0].data[...] = losses.sum() / self._divisor()

    def _divisor(self) -> Any:
        """The divisor of the loss, as a number or an array without axes."""
        return self.xp.maximum(self.valid.data, 1) if self.divisor is None else self.divisor

    def _classes(self, bottom: list[Blob]) -> list[Array | None]:
        """The `Integers` of the labels, in the shape of the scores with one class."""
        integers = read_labels(self, bottom, self.axis, self.ignored_label())
        return [None if part is None else self.xp.expand_dims(part, self.axis) for part in integers]

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom[1:], self.probability]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        xp, probability, dx = self.xp, self.probability.data, bottom[0].diff
        scale = top[0].diff / self._divisor()
        classes, skipped, _ = self._classes(bottom)
        gradients = dx if dx.dtype == probability.dtype else xp.empty_like(probability)
        xp.multiply(probability, scale, out=gradients)
        true = xp.take_along_axis(probability, classes, self.axis)
        xp.put_along_axis(gradients, classes, scale * (true - 1), self.axis)
        if skipped is not None:
            xp.copyto(gradients, 0, where=skipped)
        if gradients is not dx:
            self.engine.copy(gradients, dx)


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    """top = -(t log s(x) + (1 - t) log(1 - s(x))), s the sigmoid, summed and normalised (BATCH_SIZE by default).

    Bottoms: scores x, and targets t in [0, 1] of the same count; ignore_label is compared with t cut to an integer.
    """

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.mode = self.read_normalization(BATCH_SIZE)
        self.traits = replace(self.traits, needs_host=self.counts_over_workers())
        self.divisor = Blob(self.xp)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise self.error(f"inputs must have the same count: {self.named_shapes(bottom)}")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp = self.xp
        x, target = bottom[0].data, bottom[1].data.reshape(bottom[0].shape)
        positive = x >= 0
        losses = xp.log1p(xp.exp(x - 2 * x * positive)) - x * (target - positive)  # for infinite x NaN, as in Caffe
        valid: int | Array = x.size
        ignored = self._ignored(target)
        if ignored is not None:
            losses = xp.where(ignored, 0, losses)
            valid = (x.size - ignored.sum()).astype(xp.float32)
        self.divisor.data[...] = divisor(self, bottom[1], valid, x.shape[0])
        top[0].data[...] = losses.sum() / self.divisor.data

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        x, dx = bottom[0].data, bottom[0].diff
        target = bottom[1].data.reshape(x.shape)
        self.engine.sigmoid(x, dx)
        dx -= target
        dx *= top[0].diff / self.divisor.data
        ignored = self._ignored(target)
        if ignored is not None:
            self.xp.copyto(dx, 0, where=ignored)

    def _ignored(self, target: Array) -> Array | None:
        """Where targets are ignored; None if they never are."""
        label = self.ignored_label()
        return None if label is None else target.astype(self.xp.int64) == label


@register("EuclideanLoss")
class EuclideanLoss(LossLayer):
    """top = sum of (a - b)^2 / (2 N), N the first dimension. Both bottoms can have a gradient."""

    traits = replace(LossLayer.traits, labels=())

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.difference = Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise self.error(f"Inputs must have the same dimension: {self.named_shapes(bottom)}")
        self.difference.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        a, difference = bottom[0].data, self.difference.data
        self.xp.subtract(a, bottom[1].data.reshape(a.shape), out=difference)
        self.samples = self.count_samples(bottom)
        top[0].data[...] = (difference * difference).sum() / (2 * self.samples)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [self.difference]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        scale = top[0].diff / self.samples
        for blob, down, sign in zip(bottom, propagate_down, (1, -1), strict=True):
            if down:
                copy_values(sign * scale * self.difference.data, blob.diff)
