"""What is done value by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Array = Any


class PlainElementwise:
    """Arrays have one shape, and any strides. Outputs may be the same memory as an input."""

    xp: Any

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        """y = max(x, 0) + slope * min(x, 0)."""
        leak = self.xp.float32(slope) * self.xp.minimum(x, 0) if slope else None
        self.xp.maximum(x, 0, out=y)
        if leak is not None:
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

    def add_relu(self, a: Array, b: Array, y: Array) -> None:
        """y = max(a + b, 0)."""
        self.xp.add(a, b, out=y)
        self.xp.maximum(y, 0, out=y)

    def multiply(self, a: Array, b: Array, y: Array) -> None:
        """y = a * b."""
        self.xp.multiply(a, b, out=y)

    def copy(self, x: Array, y: Array) -> None:
        """y = x."""
        y[...] = x
