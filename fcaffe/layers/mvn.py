"""Mean-variance normalisation of each sample."""

from __future__ import annotations

from fcaffe.layers.c_order import copy_values
from fcaffe.net import Array, Blob, Layer, Traits, placements, register


@register("MVN")
class MVN(Layer):
    """top = (x - mean) / (standard deviation + eps), of each channel of each sample, or of all its channels together.

    The latter with `across_channels`; without `normalize_variance` there is no division. The top always has four axes,
    (N, C, H, W). In place too.
    """

    traits = Traits(bottoms=1, tops=1)
    ignores_propagate_down = True
    rule = placements.by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.deviation = Blob(self.xp)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0]
        top[0].reshape(x.num, x.channels, x.height, x.width)
        self.deviation.reshape(x.num, 1 if self.param.mvn_param.across_channels else x.channels, 1, 1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, y = self.param.mvn_param, top[0].data
        x = bottom[0].data.reshape(y.shape)
        self.xp.subtract(x, self._mean(x), out=y)
        if p.normalize_variance:
            deviation = self.deviation.data
            self.xp.add(self.xp.sqrt(self._mean(y * y)), self.xp.float32(p.eps), out=deviation)
            y /= deviation

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        y, dy = top[0].data, top[0].diff
        dx = dy - self._mean(dy)
        if self.param.mvn_param.normalize_variance:
            dx -= self._mean(dy * y) * y
            dx /= self.deviation.data
        copy_values(dx, bottom[0].diff)

    def _mean(self, x: Array) -> Array:
        axes = (1, 2, 3) if self.param.mvn_param.across_channels else (2, 3)
        return x.mean(axis=axes, dtype=self.xp.float64, keepdims=True).astype(x.dtype)
