"""Engine: an array module and the operators that are worth a fast implementation.

`Engine` writes every operator in plain array code that NumPy and CuPy run alike; that is the reference. A fast engine
overrides single operators. Arrays come in as N x C x spatial axes with any strides; results are written in place into
the arrays that the caller hands over.
"""

from __future__ import annotations

from fcaffe.engines.base import EngineBase
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array
from fcaffe.engines.normalization import PlainNormalization
from fcaffe.engines.pooling import PlainPooling


class PlainInnerProduct(PlainElementwise):
    """x (M, K), weights (N, K), or (K, N) with `transpose`, bias (N,) or None, y (M, N)."""

    def flattened(self, x: Array, values: int) -> Array:
        """x in C order as rows of `values` values: a view or a copy. A copy is valid until the next call."""
        if x.flags.c_contiguous:
            return x.reshape(-1, values)
        rows = self.flat_memory(x)
        self.copy(x, rows)
        return rows.reshape(-1, values)

    def flat_memory(self, x: Array) -> Array:
        """Memory in C order for a copy of x or of its gradient, valid until the next call."""
        return self.xp.empty(x.shape, x.dtype)

    def matmul(self, a: Array, b: Array, transpose_b: bool = False) -> Array:
        """a (M, K) times b (K, N), or (N, K) with `transpose_b`: (M, N)."""
        return a @ (b.T if transpose_b else b)

    def products(self, a: Array, b: Array, c: Array) -> None:
        """c (..., M, N) = a (..., M, K) times b (..., K, N); their first axes are repeated as those of operands."""
        self.xp.matmul(a, b, out=c)

    def inner_product_forward(self, x: Array, weights: Array, bias: Array, y: Array, transpose: bool) -> None:
        """y = x @ weights.T + bias."""
        self.xp.matmul(x, weights if transpose else weights.T, out=y)
        if bias is not None:
            y += bias

    def inner_product_backward_data(self, dy: Array, weights: Array, dx: Array, transpose: bool) -> None:
        """dx (M, K) = the gradient of x."""
        self.xp.matmul(dy, weights.T if transpose else weights, out=dx)

    def inner_product_backward_weights(self, x: Array, dy: Array, dweights: Array, transpose: bool, add: bool) -> None:
        """dweights = the gradient of the weights; with `add` += it."""
        a, b = (x.T, dy) if transpose else (dy.T, x)
        if add:
            dweights += a @ b
        else:
            self.xp.matmul(a, b, out=dweights)


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
