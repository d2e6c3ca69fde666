"""Fully connected layers and other products of matrices, by cuBLAS."""

from __future__ import annotations

from fcaffe.engines.cuda.cublas import Cublas
from fcaffe.engines.cuda.operands import LIMITS
from fcaffe.engines.engine import PlainInnerProduct
from fcaffe.engines.limits import or_plain
from fcaffe.engines.memory import Array


class InnerProduct(PlainInnerProduct):
    """x (M, K), weights (N, K), or (K, N) with `transpose`, bias (N,) or None, y (M, N); see PlainInnerProduct.

    Factors are of the engine's 16-bit type if it has one; sums are float32.
    """

    cublas: Cublas
    math: str

    @or_plain
    def matmul(self, a: Array, b: Array, transpose_b: bool = False) -> Array:
        c = self.xp.empty((a.shape[0], b.shape[0 if transpose_b else 1]), a.dtype)
        self._multiply(a, b, c, transpose_b=transpose_b)
        return c

    def products(self, a: Array, b: Array, c: Array) -> None:
        if not a.size or not b.size:
            c[...] = 0
            return
        kind = a.dtype if self.half_dtype is None else self.half_dtype
        a, b = (self.xp.broadcast_to(factor, (*c.shape[:-2], *factor.shape[-2:])) for factor in (a, b))
        a, b = (self.xp.ascontiguousarray(factor.astype(kind, copy=False)) for factor in (a, b))
        made = c if c.flags.c_contiguous else self.xp.empty(c.shape, c.dtype)
        left, right, products = (matrices.reshape(-1, *matrices.shape[-2:]) for matrices in (a, b, made))
        self.cublas.multiply_each(left, right, products, tf32=self.math == "tf32")
        if made is not c:
            self.copy(made, c)

    @or_plain
    def inner_product_forward(self, x: Array, weights: Array, bias: Array, y: Array, transpose: bool) -> None:
        self._multiply(x, weights, y, transpose_b=not transpose)
        if bias is not None:
            self.add_bias(y, bias)

    @or_plain
    def inner_product_backward_data(self, dy: Array, weights: Array, dx: Array, transpose: bool) -> None:
        self._multiply(dy, weights, dx, transpose_b=transpose)

    @or_plain
    def inner_product_backward_weights(self, x: Array, dy: Array, dweights: Array, transpose: bool, add: bool) -> None:
        a, b = (x, dy) if transpose else (dy, x)
        self._multiply(a, b, dweights, transpose_a=True, add=add)

    def _multiply(
        self, a: Array, b: Array, c: Array, transpose_a: bool = False, transpose_b: bool = False, add: bool = False
    ) -> None:
        """c = a b, or with `add` c += a b; all in C order, factors perhaps transposed."""
        LIMITS["matmul"].check([a, b, c])
        if self.half_dtype is not None:
            a, b = (factor.astype(self.half_dtype, copy=False) for factor in (a, b))
        self.cublas.multiply(a, b, c, transpose_a, transpose_b, add, tf32=self.math == "tf32")
