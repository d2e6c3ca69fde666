"""Losses that stop at a margin: HingeLoss and ContrastiveLoss."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.c_order import copy_values, rows_of
from fcaffe.layers.labels import check_sample_labels, read_sample_labels
from fcaffe.layers.loss import LossLayer
from fcaffe.net import Array, Blob, register
from fcaffe.proto import caffe_pb2 as pb

TINY = 1e-4  # added to a distance before dividing by it


@register("HingeLoss")
class HingeLoss(LossLayer):
    """top = sum of max(0, 1 - x) for the true class and of max(0, 1 + x) for all others, over N; L2: of their squares.

    Bottoms: scores (N, classes); labels (N,).
    """

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_sample_labels(self, bottom)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        _, violations, wrong = self._violations(bottom)
        total = (violations**2 if self._is_squared() else violations).sum()
        self.samples = self.count_samples(bottom)
        top[0].data[...] = self.xp.where(wrong.any(), self.xp.nan, total / self.samples)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        signs, violations, _ = self._violations(bottom)
        slope = 2 * violations if self._is_squared() else self.xp.sign(violations)
        copy_values(top[0].diff / self.samples * slope * signs, bottom[0].diff)

    def _violations(self, bottom: list[Blob]) -> tuple[Array, ...]:
        """The signs of the scores and by how much they violate the margin, (N, classes), and where labels are wrong."""
        labels, _, wrong = read_sample_labels(self, bottom)
        x = rows_of(bottom[0].data)
        signs = self.xp.where(self.xp.arange(x.shape[1]) == labels, self.xp.float32(-1), self.xp.float32(1))
        return signs, self.xp.fmax(0, 1 + signs * x), wrong  # NaN counts as 0, as in Caffe

    def _is_squared(self) -> bool:
        return self.param.hinge_loss_param.norm == pb.HingeLossParameter.L2


@register("ContrastiveLoss")
class ContrastiveLoss(LossLayer):
    """top = sum over pairs of d^2 if they are alike, else max(0, margin - d)^2, over 2 N; d is their distance.

    Bottoms: a and b (N, channels), and (N,) which is not 0 for pairs that are alike (Hadsell, Chopra and LeCun, 2006).
    With `legacy_version` unlike pairs count max(0, margin - d^2).
    """

    traits = replace(LossLayer.traits, bottoms=3, labels=(), constants=(2,))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        if self.param.propagate_down:  # without it the third bottom counts as a constant, as in Caffe
            self.traits = replace(self.traits, labels=(2,))
        self.difference = Blob(self.xp)
        self.slopes = Blob(self.xp)  # (N,): half the loss of a pair by its distance, over the distance

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count or bottom[2].count != bottom[0].shape[0]:
            raise self.error(f"needs two bottoms of one shape, and one value per sample: {self.named_shapes(bottom)}")
        samples = bottom[0].shape[0]
        self.difference.reshape(samples, math.prod(bottom[0].shape[1:]))
        self.slopes.reshape(samples)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, p = self.xp, self.param.contrastive_loss_param
        difference = self.difference.data
        xp.subtract(rows_of(bottom[0].data), rows_of(bottom[1].data), out=difference)
        squares = (difference**2).sum(axis=1)
        alike = bottom[2].data.reshape(-1).astype(xp.int64) != 0
        distance = xp.sqrt(squares)
        gap = xp.maximum(0, p.margin - (squares if p.legacy_version else distance))
        losses = xp.where(alike, squares, gap if p.legacy_version else gap**2)
        unlike = xp.where(gap > 0, 1 if p.legacy_version else gap / (distance + TINY), 0)
        self.slopes.data[...] = xp.where(alike, 1, -unlike)
        self.samples = self.count_samples(bottom)
        top[0].data[...] = losses.sum() / (2 * self.samples)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[2]:
            bottom[2].diff[...] = 0
        slopes, scale = self.slopes.data[:, None], top[0].diff / self.samples
        gradients = self.xp.where(slopes == 0, 0, scale * slopes * self.difference.data)
        for blob, down, sign in zip(bottom, propagate_down, (1, -1), strict=False):
            if down:
                copy_values(sign * gradients, blob.diff)
