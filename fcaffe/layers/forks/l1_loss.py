"""L1Loss: the sum of absolute differences."""

from __future__ import annotations

from fcaffe.layers.loss import EuclideanLoss
from fcaffe.net import Blob, register
from fcaffe.proto import forks


@register("L1Loss")
class L1Loss(EuclideanLoss):
    """top = sum of |a - b| / N, N the first dimension. Both bottoms can have a gradient, which is 0 where a = b."""

    fork = forks.NVIDIA

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        a, difference = bottom[0].data, self.difference.data
        self.xp.subtract(a, bottom[1].data.reshape(a.shape), out=difference)
        self.samples = self.count_samples(bottom)
        top[0].data[...] = abs(difference).sum() / self.samples
        self.xp.sign(difference, out=difference)  # what backward multiplies by
