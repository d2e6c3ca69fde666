"""Losses that stop at a margin: HingeLoss and ContrastiveLoss."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.c_order import rows_of
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

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        xp, x = self.xp, rows_of(bottom[0].data)
        labels, _, wrong = read_sample_labels(self, bottom)
        signs = xp.where(xp.arange(x.shape[1]) == labels, xp.float32(-1), xp.float32(1))
        losses = xp.fmax(0, 1 + signs * x)  # NaN counts as 0, as in Caffe
        slopes = xp.sign(losses)
        if self.param.hinge_loss_param.norm == pb.HingeLossParameter.L2:
            losses, slopes = losses**2, 2 * losses
        return xp.where(wrong, xp.nan, losses), slopes * signs


@register("ContrastiveLoss")
class ContrastiveLoss(LossLayer):
    """top = sum over pairs of d^2 if they are alike, else max(0, margin - d)^2, over 2 N; d is their distance.

    Bottoms: a and b (N, channels), and (N,) which is not 0 for pairs that are alike (Hadsell, Chopra and LeCun, 2006).
    With `legacy_version` unlike pairs count max(0, margin - d^2).
    """

    traits = replace(LossLayer.traits, bottoms=3, labels=(), constants=(2,))
    learning = 2

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        if self.param.propagate_down:  # without it the third bottom counts as a constant, as in Caffe
            self.traits = replace(self.traits, labels=(2,))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[0].count != bottom[1].count or bottom[2].count != bottom[0].shape[0]:
            raise self.error(f"needs two bottoms of one shape, and one value per sample: {self.named_shapes(bottom)}")

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        xp, p = self.xp, self.param.contrastive_loss_param
        difference = rows_of(bottom[0].data) - rows_of(bottom[1].data)
        squares = (difference**2).sum(axis=1)
        alike = bottom[2].data.reshape(-1).astype(xp.int64) != 0
        distance = xp.sqrt(squares)
        gap = xp.maximum(0, p.margin - (squares if p.legacy_version else distance))
        losses = xp.where(alike, squares, gap if p.legacy_version else gap**2)
        unlike = xp.where(gap > 0, 1 if p.legacy_version else gap / (distance + TINY), 0)
        slopes = xp.where(alike, 1, -unlike)[:, None]  # half the loss of a pair by its distance, over the distance
        gradients = xp.where(slopes == 0, 0, slopes * difference)
        return losses / 2, gradients, -gradients

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        super().backward(top, propagate_down, bottom)
        for blob, down, gradient in zip(bottom, propagate_down, self.gradients, strict=False):
            if down:  # pairs beyond the margin get 0, even where the gradient of the top is infinite
                self.xp.copyto(blob.diff, 0, where=gradient.data.reshape(blob.shape) == 0)
