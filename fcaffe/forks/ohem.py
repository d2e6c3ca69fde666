"""Online hard example mining (Shrivastava et al. 2016) as R-FCN has it: BoxAnnotatorOHEM and two losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.forks.losses import SmoothL1Loss
from fcaffe.layers.loss import FULL, VALID, EuclideanLoss, SoftmaxWithLoss, divisor
from fcaffe.net import ALL_BOTTOMS, Blob, Half, Layer, Traits, register
from fcaffe.proto import forks


@register("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(Layer):
    """Keeps the labels and box weights of the `roi_per_img` regions of each image with the highest loss.

    Bottoms: regions (R, 5), their losses (R,), labels (R,) and box weights (R, K, ...). Tops: labels, where the others
    have `ignore_label`, and weights, where the others have 0. Of equal losses the first region comes first.
    """

    fork = forks.RFCN
    traits = Traits(bottoms=4, tops=2, in_place=False, needs_host=True, labels=ALL_BOTTOMS)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.param.box_annotator_ohem_param.roi_per_img < 1:
            raise self.error("box_annotator_ohem_param needs roi_per_img, at least 1")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        regions, losses, labels, weights = bottom
        rows = regions.shape[0] if regions.shape else 0
        fits = regions.count == 5 * rows and losses.count == labels.count == rows and weights.shape[:1] == (rows,)
        if not fits:
            raise self.error(
                f"needs R regions of 5 values, R losses, R labels and R rows of weights, not "
                f"{self.named_shapes(bottom)}"
            )
        for blob, source in zip(top, bottom[2:], strict=True):
            blob.reshape(*source.shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, xp = self.param.box_annotator_ohem_param, self.xp
        regions, losses = (self.engine.to_numpy(blob.data) for blob in bottom[:2])
        images = np.floor(regions.reshape(-1, 5)[:, 0])
        order = np.lexsort((-losses.reshape(-1), images))
        ranked = images[order]
        ranks = np.arange(len(order)) - np.searchsorted(ranked, ranked)  # rank of its loss within its image
        hard = np.zeros(len(order), bool)
        hard[order] = ranks < p.roi_per_img
        for blob, source, other in zip(top, bottom[2:], (p.ignore_label, 0), strict=True):
            kept = self.engine.from_numpy(hard).reshape(-1, *(1,) * (len(source.shape) - 1))
            blob.data[...] = xp.where(kept, source.data, xp.float32(other))


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(SmoothL1Loss):
    """SmoothL1Loss with sigma 1, normalised as loss_param says. Bottoms: prediction, target [, weights].

    VALID (the default) and FULL divide by N * H * W. The second top (N, 1, H, W) has the loss of each region, summed
    over channels and not divided. Counts only if `loss_weight` is given.
    """

    fork = forks.RFCN
    traits = replace(SmoothL1Loss.traits, bottoms=(2, 3), tops=(1, 2))
    knows_pre_fixed = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.mode = self.read_normalization(VALID)
        if self.mode == FULL:
            self.mode = VALID
        EuclideanLoss.setup(self, bottom, top)
        self.s = 1.0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for blob in top[1:]:
            blob.reshape(bottom[0].num, 1, bottom[0].height, bottom[0].width)

    def count_samples(self, bottom: list[Blob]) -> Any:
        n, positions = bottom[0].num, bottom[0].height * bottom[0].width
        return divisor(self, bottom[1], n * positions, n, n * positions)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().forward(bottom, top)
        for blob in top[1:]:
            losses = self.terms(bottom)[0].reshape(blob.shape[0], bottom[0].channels, *blob.shape[2:])
            blob.data[...] = losses.sum(axis=1, keepdims=True)


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss with further tops: the softmax, and the loss of each label, not divided, 0 where ignored.

    With more than one top it needs a loss_weight for each; only that of the first sends a gradient. PRE_FIXED divides
    by `pre_fixed_normalizer`, as in Intel's fork.
    """

    fork = forks.RFCN
    traits = replace(SoftmaxWithLoss.traits, bottoms=2, tops=(1, 3), half=Half.NONE)
    takes_targets = False
    knows_pre_fixed = True

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for blob in top[2:]:
            blob.reshape(*bottom[1].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().forward(bottom, top)
        for blob in top[2:]:
            classes, ignored, _ = self.classes(bottom)
            losses = self.losses(classes) if ignored is None else self.xp.where(ignored, 0, self.losses(classes))
            blob.data[...] = losses.reshape(blob.shape)
