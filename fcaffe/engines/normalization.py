"""Local response normalisation, batch normalisation and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fcaffe.engines.channels import channels_last
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array

PIECE = 1 << 17  # values of a step of local response normalisation, for the caches


class Normalizer(NamedTuple):
    """y = (x - mean) / sqrt(variance + eps), unless None times scale plus shift, then ReLU with `relu`.

    The arrays have one value for each channel.
    """

    mean: Array
    variance: Array
    eps: float
    scale: Array | None = None
    shift: Array | None = None
    relu: bool = False


class Whole(NamedTuple):
    """The batch of all workers, if x is a part of it."""

    values: float | Array  # of each channel in it: their number, which may be an array of one on a GPU
    sum: Callable[[Array], Array]  # sums dy * normalized x and dy, (2, C), over the workers


class PlainNormalization(PlainElementwise):
    lrn_memory = 1  # arrays of the shape of x that lrn_forward saves for backward

    def lrn_forward(
        self, x: Array, y: Array, memory: Array | None, size: int, alpha: float, beta: float, k: float
    ) -> None:
        """Across channels (axis 1): scale = k + alpha / size * sum of squares of `size` channels; y = x * scale^-beta.

        `memory` (lrn_memory * N, C, H, W) is saved for backward; None if there is no backward pass.
        """

        def work(x: Array, y: Array, scale: Array | None = None) -> None:
            sums = self._window_sums(x, x, size)
            sums *= self.xp.float32(alpha / size)
            sums += self.xp.float32(k)
            if scale is not None:
                scale[...] = sums[..., : x.shape[-1]]
            self.xp.multiply(x, self._power(sums, -beta)[..., : x.shape[-1]], out=y)

        arrays = [x, y] if memory is None else [x, y, memory]
        self.for_each(work, [tuple(channels_last(each[piece]) for each in arrays) for piece in _pieces(x)])

    def lrn_backward(
        self, x: Array, memory: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float, k: float
    ) -> None:
        """dx = dy * scale^-beta - 2 alpha beta / size * x * sum over the window of dy * y / scale."""

        def work(x: Array, scale: Array, dy: Array, dx: Array) -> None:
            gain = self._power(scale.copy(), -beta)
            sums = self._window_sums(dy / scale, x * gain, size)[..., : x.shape[-1]]
            sums *= self.xp.float32(2 * alpha * beta / size)
            sums *= x
            gain *= dy
            self.xp.subtract(gain, sums, out=dx)

        arrays = x, memory, dy, dx
        self.for_each(work, [tuple(channels_last(each[piece]) for each in arrays) for piece in _pieces(x)])

    def _window_sums(self, a: Array, b: Array, size: int) -> Array:
        """For each channel the sum of a * b over the `size` channels centred on it, (N, H, W, C + size - 1).

        The sums of the last size - 1 channels are undefined. Zeros between the channels of two positions let the sums
        of all positions be those of one long row, which NumPy adds up fastest.
        """
        *positions, channels = a.shape
        length = channels + size - 1
        row = self.xp.zeros(math.prod(positions) * length + size - 1, a.dtype)
        whole = row.size - size + 1
        inside = slice(size // 2, size // 2 + channels)
        self.xp.multiply(a, b, out=row[:whole].reshape(*positions, length)[..., inside])
        sums = row[:whole].copy()
        for distance in range(1, size):
            sums += row[distance : distance + whole]
        return sums.reshape(*positions, length)

    def _power(self, values: Array, exponent: float) -> Array:
        """The values to this power, in their memory."""
        if exponent != -0.75:
            values **= self.xp.float32(exponent)
            return values
        roots = self.xp.sqrt(values, out=values)  # two roots take a tenth of the time of a power
        roots *= self.xp.sqrt(roots)
        return self.xp.divide(self.xp.float32(1), roots, out=roots)

    def batch_norm_moments(self, x: Array, mean: Array, variance: Array) -> None:
        """mean, variance (C,) = those of x over all axes but 1."""
        values = self.xp.float32(max(1, x.size // x.shape[1]))
        mean[...] = self.channel_sums(x) / values
        centred = x - self._along_channels(mean, x)
        variance[...] = self.channel_sums(centred * centred) / values

    def merge_moments(self, parts: Array, mean: Array, variance: Array) -> None:
        """mean, variance (C,) = those of several batches together.

        A row of `parts` (batches, 1 + 2 C) has the number of values per channel, their means and their variances.
        """
        xp = self.xp
        counts, means, variances = (
            part.astype(xp.float64) for part in (parts[:, :1], parts[:, 1 : 1 + mean.size], parts[:, 1 + mean.size :])
        )
        share = counts / xp.maximum(1, counts.sum())
        overall = (share * means).sum(axis=0)
        distance = means - overall
        mean[...], variance[...] = overall, (share * (variances + distance * distance)).sum(axis=0)

    def add_to_statistics(
        self, sums: tuple[Array, Array, Array], mean: Array, variance: Array, unbiased: float, fraction: float
    ) -> None:
        """Each of the sums, of means (C,), of `unbiased` variances (C,) and of weights (1,), is multiplied by the
        fraction before the new one is added."""
        for total, value in zip(sums, (mean, unbiased * variance, 1.0), strict=True):
            total *= fraction
            total += value

    def batch_norm_apply(self, x: Array, y: Array, norm: Normalizer) -> None:
        """y = the normalised x, see Normalizer."""
        self.xp.subtract(x, self._along_channels(norm.mean, x), out=y)
        y /= self._along_channels(self.xp.sqrt(norm.variance + self.xp.float32(norm.eps)), y)
        if norm.scale is not None:
            y *= self._along_channels(norm.scale, x)
            y += self._along_channels(norm.shift, x)
        if norm.relu:
            self.relu_forward(y, y, 0)

    def batch_norm_train_backward(
        self, x: Array, dy: Array, dx: Array, norm: Normalizer, gradients: Sequence[Array], whole: Whole | None = None
    ) -> None:
        """dx = the gradient of x, also through mean and variance; `gradients` = those of scale and shift, or none.

        If x is a part of a batch, `whole` adds up the sums that dx needs over the workers.
        """
        xp = self.xp
        deviation = self._along_channels(xp.sqrt(norm.variance + xp.float32(norm.eps)), x)
        normalized = (x - self._along_channels(norm.mean, x)) / deviation
        if norm.relu:
            y = xp.empty_like(normalized)
            self.batch_norm_apply(x, y, norm._replace(relu=False))
            dy = dy * (y > 0)

        def sums_of(dy: Array) -> Array:
            return xp.stack([self.channel_sums(dy * normalized), self.channel_sums(dy)])

        sums, values = sums_of(dy), x.size // x.shape[1]
        if gradients:
            gradients[0][...], gradients[1][...] = sums
        if whole is not None:
            sums, values = whole.sum(sums).astype(xp.float32), whole.values
        if norm.scale is not None:  # one worker computes, bit for bit, what BatchNorm and Scale compute one by one
            dy = dy * self._along_channels(norm.scale, x)
            sums = sums_of(dy) if whole is None else sums * norm.scale
        means = sums / xp.maximum(values, 1).astype(xp.float32)
        mean_product, mean_dy = (self._along_channels(each, x) for each in means)
        dx[...] = (dy - mean_dy - mean_product * normalized) / deviation

    def batch_norm_add_relu(self, x: Array, other: Array, y: Array, norm: Normalizer) -> None:
        """y = ReLU of the sum of `other` and of x as batch_norm_apply normalises it."""
        self.batch_norm_apply(x, y, norm)
        self.weighted_sum([y, other], [1.0, 1.0], y)
        self.relu_forward(y, y, 0)

    def scale_channels(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        """y (N, C, ...) = x * scale + shift, each (C,); y may be x."""
        self.xp.multiply(x, self._along_channels(scale, x), out=y)
        y += self._along_channels(shift, x)

    def scale_channels_backward(
        self, x: Array, dy: Array, dx: Array, scale: Array, dscale: Array, dshift: Array
    ) -> None:
        """dx, dscale, dshift = the gradients of x, scale and shift; dx may be the same memory as dy."""
        dshift[...] = self.channel_sums(dy)
        dscale[...] = self.channel_sums(dy * x)
        self.xp.multiply(dy, self._along_channels(scale, dy), out=dx)

    def _along_channels(self, values: Array, x: Array) -> Array:
        return values.reshape(1, -1, *(1,) * (x.ndim - 2))

    def softmax_forward(self, x: Array, y: Array, axis: int) -> None:
        """y = exp(x - max) / sum along `axis`."""
        xp = self.xp
        if not x.size:  # also along the axis, where NumPy knows no maximum
            return
        x = self.as_float32(x)
        exponentials = xp.exp(x - x.max(axis=axis, keepdims=True))
        y[...] = exponentials / exponentials.sum(axis=axis, keepdims=True)

    def softmax_backward(self, y: Array, dy: Array, dx: Array, axis: int) -> None:
        """dx = (dy - sum(dy * y)) * y."""
        self.copy((dy - (dy * y).sum(axis=axis, keepdims=True)) * y, dx)


def _pieces(x: Array) -> list[tuple[slice, ...]]:
    """Indices that cut x (N, C, H, W) into pieces of about PIECE values: images, or rows of an image."""
    images, channels, height, width = x.shape
    images_at_once = max(1, PIECE // max(1, channels * height * width))
    rows = height if images_at_once > 1 else max(1, PIECE // max(1, channels * width))
    return [
        (slice(image, min(images, image + images_at_once)), slice(None), slice(row, row + rows))
        for image in range(0, images, images_at_once)
        for row in range(0, height, rows)
    ]
