"""DiceCoefLoss: overlap of predicted and true segments."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.c_order import copy_values, rows_of
from fcaffe.layers.labels import check_label_count, read_classes
from fcaffe.layers.loss import LossLayer
from fcaffe.net import Array, Blob, register
from fcaffe.proto import forks


@register("DiceCoefLoss")
class DiceCoefLoss(LossLayer):
    """top = 1 - the mean over the samples of (2 a.b + s) / (a.a + b.b + s).

    Bottoms: a (N, ...), and b of as many values, with s = 1, which both can have a gradient. Or scores a (N, C, ...),
    and a label for each position: b is 1 at the labels and else 0, and s = 1 / N.
    """

    fork = forks.DICE
    traits = replace(LossLayer.traits, labels=(), reads="bottoms")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.of_labels = math.prod(bottom[0].shape[1:]) != math.prod(bottom[1].shape[1:])
        p = self.param.dice_coef_loss_param
        self.traits = replace(self.traits, labels=(1,) if self.of_labels else ())
        if p.generalization > p.MULTICLASS or p.contour_shape or p.weights or p.HasField("ignore_label"):
            raise self.error("dice_coef_loss_param: weights, contours and ignore_label are not supported; remove them")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            check_label_count(self, bottom, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.samples = self.count_samples(bottom)
        top[0].data[...] = (1 - self._terms(bottom)[3]).sum() / self.samples

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        a, b, total, dice = self._terms(bottom)
        scale = 2 * top[0].diff / self.samples / total
        for blob, down, own, other in zip(bottom, propagate_down, (a, b), (b, a), strict=True):
            if down:
                copy_values(scale * (dice * own - other), blob.diff)

    def _terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        """a and b as (N, values), and of each sample the divisor and the coefficient (N, 1)."""
        f32, (a, b) = self.xp.float32, (blob.data for blob in bottom)
        if self.of_labels:
            labels, _, wrong = read_classes(self, bottom, 1, None)
            classes = self.xp.arange(a.shape[1]).reshape(-1, *(1,) * (a.ndim - 2))
            b = self.xp.where(wrong, f32("nan"), (labels == classes).astype(f32))
        a, b, smooth = rows_of(a), rows_of(b), f32(1 / self.samples if self.of_labels else 1)
        total = (a * a + b * b).sum(axis=1, keepdims=True) + smooth
        return a, b, total, (2 * (a * b).sum(axis=1, keepdims=True) + smooth) / total
