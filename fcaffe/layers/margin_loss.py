"""Losses that stop at a margin: HingeLoss and ContrastiveLoss."""

from __future__ import annotations

from fcaffe.layers.labels import check_sample_labels, read_sample_labels
from fcaffe.layers.loss import LossLayer
from fcaffe.layers.reshape import copy_values, rows_of
from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import register
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
        xp, scores = self.xp, rows_of(bottom[0].data)
        self.signs = xp.ones_like(scores)
        xp.put_along_axis(self.signs, read_sample_labels(self, bottom), -1, 1)
        self.violations = xp.maximum(0, 1 + self.signs * scores)
        total = (self.violations**2 if self._is_squared() else self.violations).sum()
        self.samples = self.count_samples(bottom)
        top[0].data[...] = total / self.samples

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.refuse_label_gradient(propagate_down)
        if propagate_down[0]:
            slope = 2 * self.violations if self._is_squared() else self.xp.sign(self.violations)
            copy_values(float(top[0].diff) / self.samples * slope * self.signs, bottom[0].diff)

    def _is_squared(self) -> bool:
        return self.param.hinge_loss_param.norm == pb.HingeLossParameter.L2


@register("ContrastiveLoss")
class ContrastiveLoss(LossLayer):
    """top = sum over pairs of d^2 if they are alike, else max(0, margin - d)^2, over 2 N; d is their distance.

    Bottoms: a and b (N, channels), and (N,) which is not 0 for pairs that are alike (Hadsell, Chopra and LeCun, 2006).
    With `legacy_version` unlike pairs count max(0, margin - d^2).
    """

    bottoms = 3

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count or bottom[2].count != bottom[0].shape[0]:
            raise self.error(f"needs two bottoms of one shape, and one value per sample: {self.named_shapes(bottom)}")

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index != 2

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, p = self.xp, self.param.contrastive_loss_param
        self.difference = rows_of(bottom[0].data) - rows_of(bottom[1].data)
        squares = (self.difference**2).sum(axis=1)
        self.alike = bottom[2].data.reshape(-1).astype(xp.int64) != 0
        self.distance = xp.sqrt(squares)
        self.gap = xp.maximum(0, p.margin - (squares if p.legacy_version else self.distance))
        losses = xp.where(self.alike, squares, self.gap if p.legacy_version else self.gap**2)
        self.samples = self.count_samples(bottom)
        top[0].data[...] = losses.sum() / (2 * self.samples)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[2]:
            raise self.error("cannot give its third bottom a gradient; set propagate_down: false for it")
        gradients = float(top[0].diff) / self.samples * self._slopes()[:, None] * self.difference
        for blob, down, sign in zip(bottom, propagate_down, (1, -1), strict=False):
            if down:
                copy_values(sign * gradients, blob.diff)

    def _slopes(self) -> Array:
        """(N,): half the loss of a pair by its distance, over the distance."""
        legacy = self.param.contrastive_loss_param.legacy_version
        unlike = self.xp.sign(self.gap) if legacy else self.gap / (self.distance + TINY)
        return self.xp.where(self.alike, 1, -unlike)
