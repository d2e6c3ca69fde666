"""Dropout in array code, with masks that the host draws."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.elementwise import PlainElementwise

Array = Any


class PlainNoise(PlainElementwise):
    """x, y, dy, dx and mask have one shape; outputs may be the same memory as an input.

    A mask has `mask_dtype` and is channels-last or in C order; each engine chooses its contents. `noise` is the run's
    source of random numbers (see fcaffe.net.Context), which depend on its kind and on the layer's key.
    """

    mask_dtype = "float32"

    def dropout_forward(
        self, x: Array, y: Array, mask: Array, noise: Any, layer: str, ratio: float, scale: float
    ) -> None:
        """y = x * scale with probability 1 - ratio, else x * 0 * scale; `mask` is saved for backward."""
        kept = noise.keep_mask(layer, x.shape, ratio)
        self.copy(self.xp.multiply(self.from_numpy(kept), self.xp.float32(scale)), mask)
        self.multiply(x, mask, y)

    def dropout_backward(self, dy: Array, mask: Array, dx: Array, scale: float) -> None:
        """dx = dy * scale where dropout_forward has not dropped x, else dy * 0 * scale."""
        self.multiply(dy, mask, dx)
