"""Engine: an array module and the operators that are worth a fast implementation.

`Engine` writes every operator in plain array code that NumPy and CuPy run alike; that is the reference. A fast engine
overrides single operators. Arrays come in as N x C x spatial axes with any strides; results are written in place into
the arrays that the caller hands over.
"""

from __future__ import annotations

from typing import Any

from fcaffe.engines.base import EngineBase
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.inner_product import PlainInnerProduct
from fcaffe.engines.memory import Array
from fcaffe.engines.normalization import PlainNormalization
from fcaffe.engines.pooling import PlainPooling


class PlainNoise(PlainElementwise):
    """Dropout, with masks that the host draws.

    x, y, dy, dx and mask have one shape; outputs may be the same memory as an input.

    A mask has `mask_dtype` and is channels-last or in C order; each engine chooses its contents. `noise` is the run's
    source of random numbers (see fcaffe.net.Context), which depend on its kind and on the layer's name.
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


class PlainRows(EngineBase):
    """Rows that are selected by indices, and their gradient."""

    def add_rows(self, rows: Array, indices: Array, target: Array) -> None:
        """target[indices] += rows. Rows with equal indices are added one after the other.

        rows (indices..., values...), indices int64, all of them in range, target (N, values...).
        """
        self.xp.add.at(target, indices, rows)

    def scattered(self, values: Array, indices: Array, count: int) -> Array:
        """(count,): the values (n,) at their indices (n,), the last one for equal indices; 0 elsewhere."""
        target = self.xp.zeros(count, values.dtype)
        target[indices] = values
        return target


class Engine(
    PlainConvolution,
    PlainPooling,
    PlainNormalization,
    PlainInnerProduct,
    PlainNoise,
    PlainRows,
):
    """Plain operators over the array module `xp`."""
