"""The mean and variance of all batches that a BatchNorm has seen, of which recent ones count more."""

from __future__ import annotations

from fcaffe.engines import Engine
from fcaffe.net import Array, Blob


class RunningStatistics:
    """Sums in three blobs, as in Caffe: of the means (C,), of the unbiased variances (C,), and of their weights (1,).

    Each batch that is added multiplies the sums by `fraction` first. Without blobs nothing is added.
    """

    def __init__(self, engine: Engine, sums: list[Blob], fraction: float) -> None:
        self._engine = engine
        self._sums = sums
        self._fraction = fraction

    def add(self, mean: Blob, variance: Blob, count: float) -> None:
        """Those of one more batch, with `count` values for each channel."""
        if count and self._sums:
            unbiased = count / (count - 1) if count > 1 else 1.0
            sums = tuple(blob.data for blob in self._sums)
            self._engine.add_to_statistics(sums, mean.data, variance.data, unbiased, self._fraction)

    def read(self, mean: Blob, variance: Blob) -> None:
        """Write the mean and the variance of all batches; 0 before there was any."""
        total = self._sums[2].data
        none = total == 0
        factor = ~none / (total + none)
        for blob, sums in zip((mean, variance), self._sums, strict=False):
            self._engine.xp.multiply(sums.data, factor, out=blob.data)

    def sums(self) -> list[Array]:
        """The three sums."""
        return [blob.data for blob in self._sums]
