"""Fully connected layers as matrix products."""

from __future__ import annotations

from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array


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
