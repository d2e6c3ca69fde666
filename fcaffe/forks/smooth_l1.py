"""Losses of absolute differences: SmoothL1Loss (Girshick 2015), quadratic for small ones, and L1Loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcaffe.layers.loss import EuclideanLoss
from fcaffe.net import Array, Blob, register
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
