"""Operators on single values: ReLU, sums, products, Dropout, copies, biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fcaffe.engines.base import EngineBase
from fcaffe.engines.formulas import Formula
from fcaffe.engines.memory import Array

FLT_MIN, FLT_MAX = 1.1754943508222875e-38, 3.4028234663852886e38


class PlainElementwise(EngineBase):
    """Arrays have one shape, and any strides. Outputs may be the same memory as an input."""

    mask_dtype = "float32"  # of Dropout's masks

    def pointwise(self, formula: Formula, arrays: Mapping[str, Array], out: Array) -> None:
        """out = the formula of these arrays, which have its shape or broadcast to it."""
        out[...] = formula.of_arrays(arrays, self.xp)

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        """y = max(x, 0) + slope * min(x, 0): NaN where x is, and for -inf if the slope is 0."""
        leak = self.xp.minimum(x, 0)
        leak *= self.xp.float32(slope)
        self.xp.maximum(x, 0, out=y)
        y += leak

    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        """dx = dy where y > 0, else slope * dy. Instead of y it may be given x."""
        gain = y > 0
        if slope:
            gain = gain + self.xp.float32(slope) * (y <= 0)
        self.xp.multiply(dy, gain, out=dx)

    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        """y = factors[0] * arrays[0] + ...; of the arrays only the first may be y."""
        self.xp.multiply(arrays[0], self.xp.float32(factors[0]), out=y)
        for array, factor in zip(arrays[1:], factors[1:], strict=True):
            y += array if factor == 1 else self.xp.float32(factor) * array

    def multiply(self, a: Array, b: Array, y: Array) -> None:
        """y = a * b."""
        self.xp.multiply(a, b, out=y)

    def draw_mask(self, mask: Array, noise: Any, ratio: float, scale: float) -> None:
        """Draw a mask of Dropout by the layer's `noise` (see fcaffe.net.noise), which keeps with probability 1 - ratio.

        The mask has `mask_dtype` and is channels-last or in C order. Each engine chooses its contents.
        """
        kept = noise.keep_mask(mask.shape, ratio)
        self.copy(self.xp.multiply(self.from_numpy(kept), self.xp.float32(scale)), mask)

    def apply_mask(self, x: Array, mask: Array, y: Array, scale: float) -> None:
        """y = x * scale where the mask keeps x, else x * 0 * scale."""
        self.multiply(x, mask, y)

    def copy(self, x: Array, y: Array) -> None:
        """y = x."""
        y[...] = x

    def as_float32(self, x: Array) -> Array:
        """x, or a float32 copy if it has 16 bits."""
        if x.dtype == self.xp.float32:
            return x
        copied = self.xp.empty_like(x, dtype=self.xp.float32)
        self.copy(x, copied)
        return copied

    def add_bias(self, y: Array, bias: Array, relu: bool = False) -> None:
        """y (N, C, ...) += bias (C,), followed by ReLU with `relu`."""
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
        if relu:
            self.relu_forward(y, y, 0)

    def bias_backward(self, dy: Array, dbias: Array, add: bool) -> None:
        """dbias (C,) = dy (N, C, ...) summed over all axes but 1; with `add` the sums are added to dbias."""
        sums = self.channel_sums(dy)
        dbias[...] = dbias + sums if add else sums

    def channel_sums(self, x: Array) -> Array:
        """x (N, C, ...) summed over all axes but 1, (C,) in float32."""
        return x.sum(axis=(0, *range(2, x.ndim)), dtype=self.xp.float32)

    def row_sums(self, a: Array, b: Array | None = None) -> Array:
        """a (N, rows, values), or a * b, summed over the rows, (N, values) in float64."""
        return (a if b is None else a * b).sum(axis=1, dtype=self.xp.float64)
