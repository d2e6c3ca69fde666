"""Losses on the logarithm of a probability: MultinomialLogisticLoss, InfogainLoss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.layers.c_order import copy_values, rows_of
from fcaffe.layers.labels import check_sample_labels, read_sample_labels
from fcaffe.layers.loss import LossLayer, SoftmaxWithLoss
from fcaffe.net import Array, Blob, Half, placements, register
from fcaffe.proto.binary import read_blob

SMALLEST = 1e-20  # probabilities below it count as this


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LossLayer):
    """top = -sum of log(p[label]) / N. Bottoms: probabilities (N, classes), as a Softmax gives them; labels (N,)."""

    traits = replace(LossLayer.traits, reads="bottoms")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_sample_labels(self, bottom)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        labels, _, wrong = read_sample_labels(self, bottom)
        self.samples = self.count_samples(bottom)
        loss = -self.xp.log(self._true(bottom, labels)).sum() / self.samples
        top[0].data[...] = self.xp.where(wrong.any(), self.xp.nan, loss)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        labels, scale = read_sample_labels(self, bottom).values, top[0].diff / self.samples
        gradients = self.xp.zeros_like(rows_of(bottom[0].data))
        self.xp.put_along_axis(gradients, labels, -scale / self._true(bottom, labels), 1)
        copy_values(gradients, bottom[0].diff)

    def _true(self, bottom: list[Blob], labels: Array) -> Array:
        """(N, 1): the probabilities of the labels."""
        return self.xp.maximum(self.xp.take_along_axis(rows_of(bottom[0].data), labels, 1), SMALLEST)


@register("InfogainLoss")
class InfogainLoss(SoftmaxWithLoss):
    """top = -sum over classes k of H[label, k] * log(softmax(x)[k]), summed over positions and normalised.

    With an identity matrix H this is SoftmaxWithLoss. H (classes, classes) is the third bottom, or the BlobProto in the
    file infogain_loss_param.source. The classes lie on infogain_loss_param.axis.
    """

    traits = replace(SoftmaxWithLoss.traits, half=Half.NONE, needs_host=True)
    takes_targets = False
    smallest = SMALLEST
    rule = placements.positions_summed(lambda layer: layer.class_axis())

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        if len(bottom) != 3:
            self.stored = self.engine.from_numpy(np.asarray(self._read_matrix(), np.float32))

    def _read_matrix(self) -> Any:
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
        self.soft, shape = True, bottom[0].shape
        classes, values = shape[self.axis], bottom[2].count if len(bottom) == 3 else self.stored.size
        if values != classes**2:
            raise self.error(f"its matrix has {values} values, not {classes}^2 for the {classes} classes of {shape}")

    def targets(self, bottom: list[Blob]) -> tuple[Array, Array | None]:
        labels, ignored, _ = self.classes(bottom)
        classes = bottom[0].shape[self.axis]
        matrix = (bottom[2].data if len(bottom) == 3 else self.stored).reshape(classes, classes)
        return self.xp.moveaxis(matrix[labels], -1, self.axis).reshape(bottom[0].shape), ignored
