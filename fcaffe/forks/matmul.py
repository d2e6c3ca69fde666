"""MatMul: the matrix product of two blobs, which attention is built from."""

from __future__ import annotations

import contextlib

import numpy as np

from fcaffe.net import Array, Blob, Layer, Traits, register
from fcaffe.net.placements import REPLICATE, Placements, Shard, common
from fcaffe.proto import forks


@register("MatMul")
class MatMul(Layer):
    """top (..., M, N) = a (..., M, K) times b (..., K, N); with `transpose_a` a is (..., K, M), b likewise.

    The axes before the last two count independent products. An axis of length 1, or one that the other bottom alone
    has, is repeated as in ONNX; the fork's own code needs equal shapes there.
    """

    fork = forks.SYNOPSYS
    traits = Traits(bottoms=2, tops=1, reads="bottoms", in_place=False, reshapes_by_shape=True)

    def rule(self, bottom: list[Blob]) -> Placements:
        shapes = [self.context.whole_shape(blob) for blob in bottom]
        axes = max(map(len, shapes))
        longest = [blob for blob, shape in zip(bottom, shapes, strict=True) if len(shape) == axes]
        placement = common(self, longest, lambda shard: shard.axis < axes - 2)
        if not isinstance(placement, Shard):
            return [placement] * 2, [placement]
        repeated = (len(shape) < axes or shape[placement.axis] == 1 for shape in shapes)
        return [REPLICATE if whole else placement for whole in repeated], [placement]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.matmul_param
        self.transposed = p.transpose_a, p.transpose_b

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shapes = [blob.shape for blob in bottom]
        if min(map(len, shapes)) > 1:
            a, b = (
                (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
                for shape, transposed in zip(shapes, self.transposed, strict=True)
            )
            with contextlib.suppress(ValueError):
                batch = np.broadcast_shapes(a[:-2], b[:-2])
                if a[-1] == b[-2]:
                    top[0].reshape(*batch, a[-2], b[-1])
                    return
        raise self.error(f"needs bottoms (..., M, K) and (..., K, N) as transposed, not {self.named_shapes(bottom)}")

    def factors(self, bottom: list[Blob]) -> tuple[Array, Array]:
        """Views of the bottoms' data as (..., M, K) and (..., K, N)."""
        (a, b), (transpose_a, transpose_b) = (blob.data for blob in bottom), self.transposed
        return a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.products(*self.factors(bottom), top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        (a, b), dy = self.factors(bottom), top[0].diff
        if propagate_down[0]:
            self.send_down(dy, b.swapaxes(-1, -2), bottom[0].diff, self.transposed[0])
        if propagate_down[1]:
            self.send_down(a.swapaxes(-1, -2), dy, bottom[1].diff, self.transposed[1])

    def send_down(self, a: Array, b: Array, diff: Array, transposed: bool) -> None:
        """Write a times b, summed over the axes along which a factor was repeated, as the gradient of the factor."""
        diff = diff.swapaxes(-1, -2) if transposed else diff
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if diff.shape[:-2] == batch:
            self.engine.products(a, b, diff)
            return
        gradient = self.xp.empty((*batch, *diff.shape[-2:]), np.float32)
        self.engine.products(a, b, gradient)
        own = (1,) * (gradient.ndim - diff.ndim) + diff.shape
        repeated = tuple(axis for axis, n in enumerate(own) if n != gradient.shape[axis])
        diff[...] = gradient.sum(axis=repeated, dtype=self.xp.float64).reshape(diff.shape)

    def macs(self, bottom: list[Blob], top: list[Blob]) -> int:
        return top[0].count * self.factors(bottom)[0].shape[-1]
