"""SmoothL1Loss: quadratic for small differences, linear for large ones (Girshick 2015)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fcaffe.layers.c_order import copy_values
from fcaffe.layers.loss import LossLayer
from fcaffe.net import Array, Blob, register
from fcaffe.proto import forks


def smooth_l1(xp: Any, x: Array, s: float = 1.0) -> Array:
    """s x^2 / 2 where |x| < 1 / s, else |x| - 1 / (2 s)."""
    size = abs(x)
    return xp.where(size < 1 / s, 0.5 * s * x * x, size - 0.5 / s)


def smooth_l1_slope(xp: Any, x: Array, s: float = 1.0) -> Array:
    """The derivative of smooth_l1."""
    return xp.where(abs(x) < 1 / s, s * x, xp.sign(x))


@register("SmoothL1Loss")
class SmoothL1Loss(LossLayer):
    """top = sum of outside * f(inside * (prediction - target)) / N, f the smooth L1 function with s = sigma^2.

    Bottoms of one shape: prediction, target, and with four inside and outside weights (Faster R-CNN). N is the first
    dimension. This kind counts only if `loss_weight` is given. With three bottoms it is the layer of SSD and the first
    Fast R-CNN: one weight, that of `inside`, no sigma, and a loss_weight of 1 by default. As in that fork, the gradient
    is not multiplied by the weight, which is right for weights 0 and 1 only. Weights get zeros as gradient.
    """

    fork = forks.FAST_RCNN
    traits = replace(LossLayer.traits, bottoms=(2, 4))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        sigma = self.param.smooth_l1_loss_param.sigma
        self.s = float(sigma * sigma)
        if len(bottom) == 3:
            super().setup(bottom, top)
            self.fork, self.s = forks.SSD, 1.0
        elif not self.param.loss_weight:
            self.warn_of_loss_weight()
        if not self.s > 0:
            raise self.error(f"sigma must not be {sigma:g}; without the field it is 1")
        self.difference = Blob(self.xp, (), channels_last=True)  # inside * (prediction - target)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if any(blob.count != bottom[0].count for blob in bottom[1:]):
            raise self.error(f"its bottoms must have the same count: {self.named_shapes(bottom)}")
        self.difference.reshape(*bottom[0].shape)

    def has_gradient(self, bottom_index: int) -> bool:
        return True

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index < 2

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.samples = self.count_samples(bottom)
        top[0].data[...] = self._losses(bottom).sum() / self.samples

    def _losses(self, bottom: list[Blob]) -> Array:
        """The loss of each value, in the shape of the prediction; leaves `difference` for backward."""
        prediction, target, *weights = self._values(bottom)
        difference = self.difference.data
        self.xp.subtract(prediction, target, out=difference)
        if weights:
            difference *= weights[0]
        losses = smooth_l1(self.xp, difference, self.s)
        return losses * weights[1] if len(weights) == 2 else losses

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom[2:], self.difference]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if any(propagate_down[:2]):
            gradient = smooth_l1_slope(self.xp, self.difference.data, self.s) * (top[0].diff / self.samples)
            if len(bottom) == 4:
                for weights in self._values(bottom)[2:]:
                    gradient *= weights
            for blob, down, sign in zip(bottom, propagate_down[:2], (1, -1), strict=False):
                if down:
                    copy_values(sign * gradient, blob.diff)
        for blob, down in zip(bottom[2:], propagate_down[2:], strict=True):
            if down:
                blob.diff[...] = 0

    def _values(self, bottom: list[Blob]) -> list[Array]:
        return [blob.data.reshape(bottom[0].shape) for blob in bottom]
