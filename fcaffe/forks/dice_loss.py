"""DiceCoefLoss: overlap of predicted and true segments."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.c_order import rows_of
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
    traits = replace(LossLayer.traits, labels=())

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.of_labels = math.prod(bottom[0].shape[1:]) != math.prod(bottom[1].shape[1:])
        self.learning = 1 if self.of_labels else 2
        super().setup(bottom, top)
        p = self.param.dice_coef_loss_param
        self.traits = replace(self.traits, labels=(1,) if self.of_labels else ())
        if p.generalization > p.MULTICLASS or p.contour_shape or p.weights or p.HasField("ignore_label"):
            raise self.error("dice_coef_loss_param: weights, contours and ignore_label are not supported; remove them")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count:
            check_label_count(self, bottom, 1)

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        f32, (a, b) = self.xp.float32, (blob.data for blob in bottom)
        if self.of_labels:
            labels, _, wrong = read_classes(self, bottom, 1, None)
            classes = self.xp.arange(a.shape[1]).reshape(-1, *(1,) * (a.ndim - 2))
            b = self.xp.where(wrong, f32("nan"), (labels == classes).astype(f32))
        a, b, smooth = rows_of(a), rows_of(b), f32(1 / self.samples if self.of_labels else 1)
        total = (a * a + b * b).sum(axis=1, keepdims=True) + smooth
        dice = (2 * (a * b).sum(axis=1, keepdims=True) + smooth) / total
        gradients = [2 / total * (dice * own - other) for own, other in ((a, b), (b, a))]
        return 1 - dice, *gradients[: self.learning]
