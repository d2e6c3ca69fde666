"""Losses: SoftmaxWithLoss, SigmoidCrossEntropyLoss, EuclideanLoss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines.elementwise import FLT_MIN
from fcaffe.engines.formulas import Formula
from fcaffe.layers.labels import Integers, check_label_count, read_classes, total_of_labels
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks

FULL, VALID, BATCH_SIZE, NONE, PRE_FIXED = (
    getattr(pb.LossParameter, name) for name in ("FULL", "VALID", "BATCH_SIZE", "NONE", "PRE_FIXED")
)
SIGMOID = Formula("sigmoid(x)")


class FromForward:
    """An attribute that forward sets and backward reads; LayerError where there was no forward pass."""

    def __get__(self, layer: Any, owner: type) -> Any:
        raise layer.error("cannot go backward, for it has not gone forward yet; run a forward pass first")


class LossLayer(Layer):
    """Base: a scalar top of loss weight 1, from predictions and labels that share their first axis.

    Forward computes the gradients too. Backward multiplies them by the gradient of the top / `samples`. A subclass
    overrides `terms`; or `forward`, which sets `samples` and calls `store`; or both passes.
    """

    traits = Traits(bottoms=2, tops=1, labels=(1,))
    automatic_tops = 1
    rule = placements.summed
    gradients: Sequence[Blob] = ()
    learning = 1  # how many bottoms, the first ones, get their gradients from forward
    counts_by_default = True  # has the loss weight 1 without loss_weight
    knows_pre_fixed = False  # supports R-FCN's normalization: PRE_FIXED
    weighted = False  # the third bottom has weights of the losses
    mode: int  # of the divisor, where there is a choice
    counted: Blob  # the divisor, in the memory of the device
    samples: Any = FromForward()  # by whose number, a float or an array without axes, the loss was divided

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.gradients = [Blob(self.xp, (), channels_last=True) for _ in range(self.learning)]
        if self.param.loss_weight:
            return
        if self.counts_by_default:
            self.param.loss_weight.append(1)
        else:
            log.warning(str(self.error("without loss_weight its loss does not count, as in its fork")))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].shape[:1] != bottom[1].shape[:1]:
            raise self.error(f"its bottoms must agree in the first dimension: {self.named_shapes(bottom)}")
        top[0].reshape()
        for gradient, blob in zip(self.gradients, bottom, strict=False):
            gradient.reshape(*blob.shape)

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        """The losses whose sum counts, and the derivatives of the sum by the bottoms that have a gradient."""
        raise NotImplementedError

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.samples = self.count_samples(bottom)
        losses, *gradients = self.terms(bottom)
        top[0].data[...] = losses.sum() / self.samples
        self.store(*gradients)

    def store(self, *gradients: Array) -> None:
        """Save the gradients of the bottoms, arrays of the host or device in C order, if a backward pass follows."""
        for blob, gradient in zip(self.gradients, gradients if self.context.saves_for_backward else (), strict=False):
            blob.data[...] = self.engine.from_numpy(gradient.reshape(blob.shape))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        kind = type(self)
        stores = kind.terms is not LossLayer.terms or kind.backward is LossLayer.backward
        return list(self.gradients) if stores else super().saved(bottom, top)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        scale = top[0].diff / self.samples
        for blob, down, gradient in zip(bottom, propagate_down, self.gradients, strict=False):
            if down:
                self.xp.multiply(gradient.data, scale, out=blob.diff)

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
            raise self.error("normalization: PRE_FIXED belongs to the OHEM losses of R-FCN, such as SmoothL1LossOHEM")
        if self.depends_on_values(mode):  # so the workers exchange the divisor in each pass
            self.workers.run_shards_in_step()
            self.traits = replace(self.traits, needs_host=self.traits.needs_host or self.workers.size > 1)
        self.counted = Blob(self.xp)
        return mode

    def depends_on_values(self, mode: int) -> bool:
        """Whether the divisor of this mode depends on the values of labels or weights."""
        return mode == VALID and (self.ignored_label() is not None or self.weighted)

    def factors(self, bottom: list[Blob], shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """By what the losses, of this shape, are multiplied, and their gradients. None: by 1."""
        if not self.weighted:
            return None
        weights, xp = bottom[2].data, self.xp
        if weights.size != math.prod(shape):
            if weights.size != shape[0]:
                raise self.error(f"needs a weight for each label, or for each sample: {self.named_shapes(bottom)}")
            weights = xp.broadcast_to(weights.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        return (weights.reshape(shape),) * 2

    def mean(self, bottom: list[Blob], losses: Array, ignored: Array | None, batch: int) -> Array:
        """The sum of the losses that are not ignored, divided by the `divisor`, which becomes `samples`."""
        xp, factors = self.xp, self.factors(bottom, losses.shape)
        if factors is not None:
            losses = xp.where(factors[0] == 0, 0, losses * factors[0])
        if ignored is not None:
            losses = xp.where(ignored, 0, losses)
        valid: Any = losses.size
        if self.depends_on_values(self.mode):
            counted = factors[0] if factors and self.weighted else xp.ones(losses.shape, "float32")
            valid = (counted if ignored is None else xp.where(ignored, 0, counted)).sum()
        self.counted.data[...] = divisor(self, bottom[1], valid, batch, losses.size)
        self.samples = self.counted.data
        return losses.sum() / self.samples


def normalization(p: Any, default: int) -> int:
    """The mode that a LossParameter asks for, in its present or in its old form (`normalize`)."""
    if not p.HasField("normalization") and p.HasField("normalize"):
        return VALID if p.normalize else BATCH_SIZE
    return p.normalization if p.HasField("normalization") else default


def divisor(layer: LossLayer, labels: Blob, valid: int | Array, batch: int, full: int) -> float | Array:
    """What a loss is divided by: the number of labels (`full`), of those not ignored, of the batch, a number that the
    prototxt gives, or nothing; at least 1. They count over all workers; see `total_of_labels`."""
    if layer.mode == NONE:
        return 1.0
    if layer.mode == PRE_FIXED:
        return max(1.0, layer.param.loss_param.pre_fixed_normalizer)
    return total_of_labels(layer, {FULL: full, VALID: valid, BATCH_SIZE: batch}[layer.mode], labels)


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(LossLayer):
    """top = -log(softmax(x)[label]), summed over all positions and normalised (VALID unless loss_param says else).

    Bottoms: scores, with the classes on softmax_param.axis; one label per position of the other axes, or targets t of
    the shape of the scores, for -sum of t log(softmax(x)); and, if given, weights of the positions or samples, by whose
    sum VALID divides. `weight_by_label_freqs`, SegNet's, weighs classes by `class_weighting`, which VALID ignores.
    The second top, if any, is the softmax; both tops then need a loss_weight.
    """

    traits = replace(LossLayer.traits, bottoms=(2, 3), tops=(1, 2), labels=(1, 2), half=Half.FIRST)
    takes_targets = True  # and weights
    class_weights: Any = None
    smallest: Any = FLT_MIN  # probabilities below it count as this
    rule = placements.positions_summed(lambda layer: layer.class_axis(), alike=3)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        log.making_layer(self.name)  # Caffe has a Softmax layer of this name in here
        self.weighted = self.takes_targets and len(bottom) > 2
        p = self.param.loss_param
        if p.weight_by_label_freqs and self.takes_targets:
            self.check_count(len(bottom), 2, "bottom", "input")
            self.fork, self.class_weights = forks.SEGNET, self.engine.from_numpy(np.float32(p.class_weighting))
        self.mode = self.read_normalization(VALID)
        self.probability = Blob(self.xp, (), channels_last=True)

    def class_axis(self) -> int:
        return self.param.softmax_param.axis

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.axis, shape = bottom[0].canonical_axis(self.class_axis()), bottom[0].shape
        self.positions = (*shape[: self.axis], 1, *shape[self.axis + 1 :])
        self.soft = self.takes_targets and bottom[1].count == bottom[0].count != math.prod(self.positions)
        if not self.soft:
            check_label_count(self, bottom, self.axis)
        elif self.ignored_label() is not None or self.class_weights is not None:
            raise self.error(f"ignore_label and class_weighting are for labels: {self.named_shapes(bottom)}")
        given = shape[self.axis] if self.class_weights is None else self.class_weights.size
        if given != shape[self.axis]:
            raise self.error(f"class_weighting is given {given} times for the {shape[self.axis]} classes of {shape}")
        for blob in (self.probability, *top[1:2]):
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, probability = self.xp, self.probability.data
        self.engine.softmax_forward(self.engine.as_float32(bottom[0].data), probability, self.axis)
        if self.soft:
            targets, skipped = self.targets(bottom)
            losses = -(targets * xp.log(xp.maximum(probability, self.smallest))).sum(axis=self.axis, keepdims=True)
        else:
            classes, skipped, wrong = self.classes(bottom)
            losses = xp.where(wrong, xp.float32("nan"), self.losses(classes))
        top[0].data[...] = self.mean(bottom, losses, skipped, math.prod(bottom[0].shape[: self.axis]))
        for blob in top[1:2]:
            blob.data[...] = probability

    def factors(self, bottom: list[Blob], shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        if self.class_weights is None:
            return super().factors(bottom, shape)
        return (self.class_weights[self.classes(bottom).values],) * 2

    def targets(self, bottom: list[Blob]) -> tuple[Array, Array | None]:
        """The factors of the logarithms, if `soft`, and where they are ignored, in the shape of `classes`."""
        return bottom[1].data.reshape(bottom[0].shape), None

    def classes(self, bottom: list[Blob]) -> Integers:
        """The labels, in the shape of the scores with one class."""
        return read_classes(self, bottom, self.axis, self.ignored_label())

    def losses(self, classes: Array) -> Array:
        """-log of the probabilities of these classes."""
        true = self.xp.take_along_axis(self.probability.data, classes, self.axis)
        return -self.xp.log(self.xp.maximum(true, self.smallest))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom[1:], self.probability]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        xp, probability, dx = self.xp, self.probability.data, bottom[0].diff
        factors = self.factors(bottom, self.positions)
        scale = top[0].diff / self.samples * (1 if factors is None else factors[1])
        gradients = dx if dx.dtype == probability.dtype else xp.empty_like(probability)
        if self.soft:
            targets, skipped = self.targets(bottom)
            xp.multiply(probability * targets.sum(axis=self.axis, keepdims=True) - targets, scale, out=gradients)
        else:
            classes, skipped, _ = self.classes(bottom)
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
    Then, if given, weights of the scores or of the samples, by whose sum VALID divides.
    """

    traits = replace(LossLayer.traits, bottoms=(2, 3), labels=(1, 2), reads="bottoms")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.weighted = len(bottom) > 2
        self.mode = self.read_normalization(BATCH_SIZE)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise self.error(f"inputs must have the same count: {self.named_shapes(bottom)}")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0].data
        ignored = self._ignored(bottom[1].data.reshape(x.shape))
        top[0].data[...] = self.mean(bottom, self.losses(bottom), ignored, x.shape[0])

    def losses(self, bottom: list[Blob]) -> Array:
        """The loss of each score; for infinite ones NaN, as in Caffe."""
        xp, x = self.xp, bottom[0].data
        positive = x >= 0
        return xp.log1p(xp.exp(x - 2 * x * positive)) - x * (bottom[1].data.reshape(x.shape) - positive)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        x, dx = bottom[0].data, bottom[0].diff
        target = bottom[1].data.reshape(x.shape)
        self.engine.pointwise(SIGMOID, {"x": x}, dx)
        dx -= target
        factors = self.factors(bottom, x.shape)
        dx *= top[0].diff / self.samples * (1 if factors is None else factors[1])
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
    learning = 2

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            raise self.error(f"Inputs must have the same dimension: {self.named_shapes(bottom)}")

    def difference(self, bottom: list[Blob]) -> Array:
        """a - b."""
        return bottom[0].data - bottom[1].data.reshape(bottom[0].shape)

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        difference = self.difference(bottom)
        return difference * difference / 2, difference, -difference
