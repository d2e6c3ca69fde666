"""Losses on the logarithm of a probability: MultinomialLogisticLoss, InfogainLoss, SoftmaxWithLoss with weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.layers.c_order import copy_values, rows_of
from fcaffe.layers.labels import check_sample_labels, read_labels, read_sample_labels
from fcaffe.layers.loss import LossLayer, SoftmaxWithLoss, divisor
from fcaffe.net import Array, Blob, Context, Half, Layer, register
from fcaffe.proto import forks
from fcaffe.proto.binary import read_blob

SMALLEST = 1e-20  # probabilities below it count as this


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LossLayer):
    """top = -sum of log(p[label]) / N. Bottoms: probabilities (N, classes), as a Softmax gives them; labels (N,)."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.labels = Blob(self.xp, dtype="int64")  # (N, 1)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_sample_labels(self, bottom)
        self.labels.reshape(bottom[1].count, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.labels.data[...], _, wrong = read_sample_labels(self, bottom)
        self.samples = self.count_samples(bottom)
        loss = -self.xp.log(self._true(bottom)).sum() / self.samples
        top[0].data[...] = self.xp.where(wrong.any(), self.xp.nan, loss)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        scale = top[0].diff / self.samples
        gradients = self.xp.zeros_like(rows_of(bottom[0].data))
        self.xp.put_along_axis(gradients, self.labels.data, -scale / self._true(bottom), 1)
        copy_values(gradients, bottom[0].diff)

    def _true(self, bottom: list[Blob]) -> Array:
        """(N, 1): the probabilities of the labels."""
        rows = rows_of(bottom[0].data)
        return self.xp.maximum(self.xp.take_along_axis(rows, self.labels.data, 1), SMALLEST)


@register("InfogainLoss")
class InfogainLoss(SoftmaxWithLoss):
    """top = -sum over classes k of H[label, k] * log(softmax(x)[k]), summed over positions and normalised.

    With an identity matrix H this is SoftmaxWithLoss. H (classes, classes) is the third bottom, or the BlobProto in the
    file infogain_loss_param.source. The classes lie on infogain_loss_param.axis. The second top, if any, is the
    softmax; both tops then need a loss_weight.
    """

    traits = replace(
        SoftmaxWithLoss.traits, bottoms=(2, 3), tops=(1, 2), labels=(1, 2), half=Half.NONE, needs_host=True
    )

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        if len(bottom) != 3:
            self.stored = self.engine.from_numpy(np.asarray(self.read_matrix(), np.float32))

    def read_matrix(self) -> Any:
        """The values of H where it is no bottom. Raises LayerError."""
        source = self.param.infogain_loss_param.source
        if not source:
            raise self.error("needs its matrix, as infogain_loss_param.source or as third bottom")
        try:
            return read_blob(source).data
        except SnapshotError as problem:
            raise self.error(f"infogain_loss_param.source: {problem}") from problem

    def class_axis(self) -> int:
        return self.param.infogain_loss_param.axis

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        classes, values = shape[self.axis], bottom[2].count if len(bottom) == 3 else self.stored.size
        if values != classes**2:
            raise self.error(f"its matrix has {values} values, not {classes}^2 for the {classes} classes of {shape}")
        if len(top) == 2:
            top[1].reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, probability = self.xp, self.probability.data
        self.engine.softmax_forward(bottom[0].data, probability, self.axis)
        gains, ignored = self._gains(bottom)
        logarithms = xp.log(xp.maximum(probability, SMALLEST))
        losses = -(gains * logarithms).sum(axis=self.axis, keepdims=True)
        valid = losses.size
        if ignored is not None:
            losses = xp.where(ignored, 0, losses)
            valid -= int(ignored.sum())
        batch = math.prod(bottom[0].shape[: self.axis])
        self.divisor = divisor(self, bottom[1], valid, batch)
        top[0].data[...] = losses.sum() / self.divisor
        if len(top) == 2:
            top[1].data[...] = probability

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, (gains, ignored) = bottom[0].diff, self._gains(bottom)
        self.xp.multiply(self.probability.data, gains.sum(axis=self.axis, keepdims=True), out=dx)
        dx -= gains
        dx *= top[0].diff / self.divisor
        if ignored is not None:
            self.xp.copyto(dx, 0, where=ignored)

    def _gains(self, bottom: list[Blob]) -> tuple[Array, Array | None]:
        """In the shape of the scores: for each position the row of H that belongs to its label. Then, with one class,
        where labels are ignored."""
        labels, ignored, _ = read_labels(self, bottom, self.axis, self.ignored_label())
        classes = bottom[0].shape[self.axis]
        matrix = (bottom[2].data if len(bottom) == 3 else self.stored).reshape(classes, classes)
        gains = self.xp.moveaxis(matrix[labels], -1, self.axis)
        return gains, None if ignored is None else self.xp.expand_dims(ignored, self.axis)


class ClassWeightedLoss(InfogainLoss):
    """SoftmaxWithLoss with the loss of each position multiplied by the weight of its class, loss_param.class_weighting.

    The weights leave the divisor as it is. H is a diagonal matrix of the weights.
    """

    fork = forks.SEGNET
    traits = replace(InfogainLoss.traits, bottoms=2, tops=1)

    def read_matrix(self) -> Any:
        return np.diag(list(self.param.loss_param.class_weighting))

    def class_axis(self) -> int:
        return SoftmaxWithLoss.class_axis(self)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        weights = len(self.param.loss_param.class_weighting)
        classes = bottom[0].shape[bottom[0].canonical_axis(self.class_axis())]
        if weights != classes:
            raise self.error(
                f"loss_param.class_weighting is given {weights} times for the {classes} classes of {bottom[0].shape}"
            )
        super().reshape(bottom, top)


@register("SoftmaxWithLoss")
def softmax_with_loss(param: Any, context: Context) -> Layer:
    """The usual loss, or that with SegNet's weights of classes."""
    return (ClassWeightedLoss if param.loss_param.weight_by_label_freqs else SoftmaxWithLoss)(param, context)
