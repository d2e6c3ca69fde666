"""Normalisation of each sample: LRN (Krizhevsky, Sutskever and Hinton, 2012) and MVN."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.engines.channels import channels_last
from fcaffe.engines.windows import Windows
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register
from fcaffe.proto import caffe_pb2 as pb


@register("LRN")
class LRN(Layer):
    """top = x * scale^-beta, over `local_size` channels or over a `local_size` square within each channel.

    ACROSS_CHANNELS: scale = k + alpha / local_size * sum of squares. WITHIN_CHANNEL: scale = 1 + alpha * mean of
    squares, where padding counts; k has no effect there, as in Caffe.
    """

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True)
    rule = placements.by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        size = self.param.lrn_param.local_size
        if size % 2 == 0:
            raise self.error(f"local_size must be odd, not {size}")
        self.windows = Windows((size, size), (1, 1), (size // 2, size // 2), (1, 1))
        if self._across_channels:
            self.traits = replace(self.traits, half=Half.SAME)
        self.scale = Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"needs a bottom of four axes (N, C, H, W), not {bottom[0].shape}")
        top[0].reshape(*bottom[0].shape)
        images, *rest = bottom[0].shape
        self.scale.reshape(images * (self.engine.lrn_memory if self._across_channels else 1), *rest)

    @property
    def _across_channels(self) -> bool:
        return bool(self.param.lrn_param.norm_region == pb.LRNParameter.ACROSS_CHANNELS)

    @property
    def ignores_propagate_down(self) -> bool:
        return self._across_channels

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom, self.scale]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.lrn_param
        x, y = bottom[0].data, top[0].data
        if self._across_channels:
            memory = self.scale.data if self.context.saves_for_backward else None
            self.engine.lrn_forward(x, y, memory, p.local_size, p.alpha, p.beta, p.k)
            return
        scale = self.scale.data
        self.engine.average_pool_forward(x * x, scale, self.windows)
        scale *= p.alpha
        scale += 1
        self.xp.multiply(x, scale ** self.xp.float32(-p.beta), out=y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        p = self.param.lrn_param
        x, dy, dx = bottom[0].data, top[0].diff, bottom[0].diff
        scale = self.scale.data
        if self._across_channels:
            self.engine.lrn_backward(x, scale, dy, dx, p.local_size, p.alpha, p.beta, p.k)
            return
        gain, spread = scale ** self.xp.float32(-p.beta), self.xp.empty_like(x)
        self.engine.average_pool_backward(dy * x * (gain / scale), spread, self.windows)
        spread *= x
        spread *= 2 * p.alpha * p.beta
        self.xp.multiply(dy, gain, out=dx)
        dx -= spread


@register("MVN")
class MVN(Layer):
    """top = (x - mean) / (standard deviation + eps), of each channel of each sample, or of all its channels together.

    The latter with `across_channels`; without `normalize_variance` there is no division. The top always has four axes,
    (N, C, H, W). In place too.
    """

    traits = Traits(bottoms=1, tops=1, reads="tops", overwrites_gradient=True)
    ignores_propagate_down = True
    rule = placements.by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.deviation = Blob(self.xp)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0]
        self.shape = x.num, x.channels, x.height, x.width
        top[0].reshape(*self.shape)
        self.deviation.reshape(x.num, 1 if self.param.mvn_param.across_channels else x.channels, 1, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, p = self.xp, self.param.mvn_param
        x, y = self._rows(bottom[0].data), self._rows(top[0].data)
        xp.subtract(x, self._spread(self._mean(x)), out=y)
        if p.normalize_variance:
            rest = self._mean(y)  # what rounding has left of the mean
            deviation = xp.sqrt(xp.maximum(self._mean(y, y) - rest * rest, 0)) + p.eps
            self.deviation.data[...] = deviation.reshape(self.deviation.shape)
            y -= self._spread(rest)
            y /= self._spread(deviation)
        self._write(y, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        y, dy, dx = map(self._rows, (top[0].data, top[0].diff, bottom[0].diff))
        mean, product = self._mean(dy), self._mean(dy, y)
        self.xp.subtract(dy, self._spread(mean), out=dx)
        if self.param.mvn_param.normalize_variance:
            dx -= self._spread(product) * y
            dx /= self._spread(self.deviation.data.reshape(product.shape))
        self._write(dx, bottom[0].diff)

    def _rows(self, array: Array) -> Array:
        """(N, H, W * C): a view if the array is channels-last, else a copy."""
        images, channels, height, width = self.shape
        return channels_last(array.reshape(self.shape)).reshape(images, height, width * channels)

    def _write(self, rows: Array, array: Array) -> None:
        """Copy the values of `_rows` back, if those are a copy."""
        last = channels_last(array.reshape(self.shape))
        if not last.flags.c_contiguous:
            last[...] = rows.reshape(last.shape)

    def _mean(self, a: Array, b: Array = None) -> Array:
        """The means (N, C), or (N, 1) across channels, of rows or of the products of two."""
        images, channels, _, width = self.shape
        sums = self.engine.row_sums(a, b).reshape(images, width, channels).sum(axis=1)
        if self.param.mvn_param.across_channels:
            sums = sums.sum(axis=1, keepdims=True)
        return sums / max(1, a.size // max(1, sums.size))

    def _spread(self, values: Array) -> Array:
        """Values (N, C) or (N, 1) repeated for all of a row: (N, 1, W * C)."""
        _, channels, _, width = self.shape
        return self.xp.tile(values.astype("float32"), (1, channels * width // max(1, values.shape[1])))[:, None]
