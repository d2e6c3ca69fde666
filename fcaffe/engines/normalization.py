"""Local response normalisation, batch normalisation and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fcaffe.engines.channels import Array, channel_sums

SumOverWorkers = Callable[[Array], Array]


class PlainNormalization:
    xp: Any

    def lrn_forward(self, x: Array, y: Array, scale: Array, size: int, alpha: float, beta: float, k: float) -> None:
        """Across channels (axis 1): scale = k + alpha / size * sum of squares of `size` channels; y = x * scale^-beta.

        `scale` has the shape of x and is kept for the backward pass.
        """
        scale[...] = self.xp.float32(alpha / size) * self._channel_sums(x * x, size) + self.xp.float32(k)
        y[...] = x * scale ** self.xp.float32(-beta)

    def lrn_backward(
        self, x: Array, y: Array, scale: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float
    ) -> None:
        """dx = dy * scale^-beta - 2 alpha beta / size * x * sum over the window of dy * y / scale."""
        sums = self._channel_sums(dy * y / scale, size)
        factor = self.xp.float32(2 * alpha * beta / size)
        dx[...] = dy * scale ** self.xp.float32(-beta) - factor * x * sums

    def _channel_sums(self, values: Array, size: int) -> Array:
        """For each channel the sum over the `size` channels centred on it, in the memory order of `values`."""
        total = values.copy(order="K")
        for distance in range(1, min(size // 2, values.shape[1] - 1) + 1):
            total[:, distance:] += values[:, :-distance]
            total[:, :-distance] += values[:, distance:]
        return total

    def batch_statistics(self, x: Array, count: float, over_workers: SumOverWorkers) -> tuple[Array, Array]:
        """Mean and biased variance (C,) over all axes but 1, and over the workers: `count` values a channel in all."""
        per_channel = self.xp.float32(max(1, count))
        mean = over_workers(channel_sums(self.xp, x)) / per_channel
        centred = x - self._along_channels(mean, x)
        return mean, over_workers(channel_sums(self.xp, centred * centred)) / per_channel

    def batch_norm_forward(self, x: Array, y: Array, mean: Array, deviation: Array) -> None:
        """y = (x - mean) / deviation, each (C,)."""
        self.xp.subtract(x, self._along_channels(mean, x), out=y)
        y /= self._along_channels(deviation, x)

    def batch_norm_backward(
        self, y: Array, dy: Array, dx: Array, deviation: Array, count: float, over_workers: SumOverWorkers
    ) -> None:
        """The gradient through mean and variance: (dy - mean(dy) - mean(dy * y) * y) / deviation."""
        per_channel = self.xp.float32(max(1, count))
        mean_dy = self._along_channels(over_workers(channel_sums(self.xp, dy)) / per_channel, y)
        mean_dy_y = self._along_channels(over_workers(channel_sums(self.xp, dy * y)) / per_channel, y)
        dx[...] = (dy - mean_dy - mean_dy_y * y) / self._along_channels(deviation, y)

    def _along_channels(self, values: Array, x: Array) -> Array:
        return values.reshape(1, -1, *(1,) * (x.ndim - 2))

    def softmax_forward(self, x: Array, y: Array, axis: int) -> None:
        """y = exp(x - max) / sum along `axis`."""
        xp = self.xp
        exponentials = xp.exp(x - x.max(axis=axis, keepdims=True))
        y[...] = exponentials / exponentials.sum(axis=axis, keepdims=True)

    def softmax_backward(self, y: Array, dy: Array, dx: Array, axis: int) -> None:
        """dx = (dy - sum(dy * y)) * y."""
        dx[...] = (dy - (dy * y).sum(axis=axis, keepdims=True)) * y
