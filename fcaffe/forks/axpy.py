"""Axpy: a channel-wise product and a sum in one, which ends the blocks of SENet."""

from __future__ import annotations

from fcaffe.net import Blob, Layer, Traits, placements, register
from fcaffe.proto import forks


@register("Axpy")
class Axpy(Layer):
    """top = a * x + y, for bottoms a (N, C) or (N, C, 1, 1), x and y (N, C, H, W)."""

    fork = forks.SENET
    traits = Traits(bottoms=3, tops=1, in_place=False, reshapes_by_shape=True)
    rule = placements.by_sample

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        a, x, y = (blob.shape for blob in bottom)
        if len(x) != 4 or x != y or a not in (x[:2], (*x[:2], 1, 1)):
            raise self.error(f"needs bottoms (N, C) and twice (N, C, H, W), not {self.named_shapes(bottom)}")
        top[0].reshape(*x)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        a, x, y = (blob.data for blob in bottom)
        self.xp.multiply(a.reshape(*a.shape[:2], 1, 1), x, out=top[0].data)
        top[0].data[...] += y

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom[:2]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        a, x, y = bottom
        dz = top[0].diff
        if propagate_down[0]:
            a.diff[...] = (dz * x.data).sum(axis=(2, 3), dtype=self.xp.float64).reshape(a.shape)
        if propagate_down[1]:
            self.xp.multiply(dz, a.data.reshape(*a.shape[:2], 1, 1), out=x.diff)
        if propagate_down[2]:
            self.engine.copy(dz, y.diff)
