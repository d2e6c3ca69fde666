"""Engine: an array module and the operators that are worth a fast implementation.

`Engine` writes every operator in plain array code that NumPy and CuPy run alike; that is the reference. A fast engine
overrides single operators. Arrays come in as N x C x spatial axes with any strides; results are written in place into
the arrays that the caller hands over.
"""

from __future__ import annotations

from fcaffe.engines.base import EngineBase
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.inner_product import PlainInnerProduct
from fcaffe.engines.memory import Array
from fcaffe.engines.normalization import PlainNormalization
from fcaffe.engines.pooling import PlainPooling


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
    PlainRows,
):
    """Plain operators over the array module `xp`."""
