"""Losses: SmoothL1Loss (Girshick 2015), L1Loss, focal losses (Lin et al., 2017), and DiceCoefLoss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fcaffe.layers.c_order import rows_of
from fcaffe.layers.labels import check_label_count, read_classes
from fcaffe.layers.loss import EuclideanLoss, LossLayer, SigmoidCrossEntropyLoss, SoftmaxWithLoss
from fcaffe.net import Array, Blob, Half, register
from fcaffe.net.arithmetic import sign
from fcaffe.proto import forks


def smooth_l1(xp: Any, x: Array, s: float = 1.0) -> Array:
    """s x^2 / 2 where |x| < 1 / s, else |x| - 1 / (2 s)."""
    size = abs(x)
    return xp.where(size < 1 / s, 0.5 * s * x * x, size - 0.5 / s)


def smooth_l1_slope(xp: Any, x: Array, s: float = 1.0) -> Array:
    """The derivative of smooth_l1."""
    return xp.where(abs(x) < 1 / s, s * x, sign(x))


@register("SmoothL1Loss")
class SmoothL1Loss(EuclideanLoss):
    """top = sum of outside * f(inside * (prediction - target)) / N, f the smooth L1 function with s = sigma^2.

    Bottoms of one shape: prediction, target, and with four inside and outside weights (Faster R-CNN). N is the first
    dimension. This kind counts only if `loss_weight` is given. With three bottoms it is the layer of SSD and the first
    Fast R-CNN: one weight, that of `inside`, no sigma, and a loss_weight of 1 by default. As in that fork, the gradient
    is not multiplied by the weight, which is right for weights 0 and 1 only. Weights get zeros as gradient.
    """

    fork = forks.FAST_RCNN
    traits = replace(EuclideanLoss.traits, bottoms=(2, 4), constants=(2, 3))
    counts_by_default = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        sigma = self.param.smooth_l1_loss_param.sigma
        self.s = float(sigma * sigma)
        if not self.s > 0:
            raise self.error(f"sigma must not be {sigma:g}; without the field it is 1")
        if len(bottom) == 3:
            self.fork, self.s, self.counts_by_default = forks.SSD, 1.0, True
        super().setup(bottom, top)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if any(blob.count != bottom[0].count for blob in bottom[2:]):
            raise self.error(f"its bottoms must have the same count: {self.named_shapes(bottom)}")

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        weights = [blob.data.reshape(bottom[0].shape) for blob in bottom[2:]]
        difference = self.difference(bottom)
        if weights:
            difference *= weights[0]
        losses, slopes = smooth_l1(self.xp, difference, self.s), smooth_l1_slope(self.xp, difference, self.s)
        if len(weights) == 2:
            losses *= weights[1]
            slopes *= weights[0] * weights[1]
        return losses, slopes, -slopes


@register("L1Loss")
class L1Loss(EuclideanLoss):
    """top = sum of |a - b| / N, N the first dimension. Both bottoms can have a gradient, which is 0 where a = b."""

    fork = forks.NVIDIA

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        difference = self.difference(bottom)
        return abs(difference), sign(difference), -sign(difference)


def modulated(layer: LossLayer, losses: Array, alpha: Array | float) -> tuple[Array, Array]:
    """The `factors` of losses -log(p): alpha (1 - p)^gamma, or alpha (1 + p)^gamma for `type: ONEADDP`."""
    xp, p = layer.xp, layer.param.focal_loss_param
    if p.type == p.LINEAR or p.gamma < 0:
        raise layer.error("focal_loss_param needs type ORIGIN or ONEADDP, and gamma of at least 0")
    sign, gamma, truth = -1 if p.type == p.ONEADDP else 1, xp.float32(p.gamma), xp.exp(-losses)
    base = 1 - sign * truth
    power = alpha * base**gamma
    return power, power + sign * gamma * power / xp.maximum(base, xp.float32(1e-10)) * truth * losses


@register("FocalLoss")
@register("SoftmaxFocalLoss")
class SoftmaxFocalLoss(SoftmaxWithLoss):
    """SoftmaxWithLoss with focal factors. With a target for each score it becomes a SigmoidFocalLoss."""

    fork: str | None = forks.FOCAL
    traits = replace(SoftmaxWithLoss.traits, bottoms=2, labels=(1,), half=Half.NONE)
    takes_targets = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[1].count == bottom[0].count:
            self.__class__ = SigmoidFocalLoss  # type: ignore[assignment]
            self.setup(bottom, top)
        else:
            super().setup(bottom, top)

    def factors(self, bottom: list[Blob], shape: tuple[int, ...]) -> tuple[Array, Array]:
        return modulated(self, self.losses(self.classes(bottom).values), self.param.focal_loss_param.alpha)


@register("SigmoidFocalLoss")
class SigmoidFocalLoss(SigmoidCrossEntropyLoss):
    """SigmoidCrossEntropyLoss, of targets 0 and 1, with focal factors; targets 0 have 1 - alpha for alpha."""

    fork = forks.FOCAL
    traits = replace(SigmoidCrossEntropyLoss.traits, bottoms=2, labels=(1,))

    def factors(self, bottom: list[Blob], shape: tuple[int, ...]) -> tuple[Array, Array]:
        alpha = self.xp.float32(self.param.focal_loss_param.alpha)
        return modulated(self, self.losses(bottom), self.xp.where(bottom[1].data.reshape(shape) == 1, alpha, 1 - alpha))


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
