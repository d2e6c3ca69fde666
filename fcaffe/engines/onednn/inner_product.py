"""Fully connected layers as oneDNN's matrix products."""

from __future__ import annotations

import numpy as np

from fcaffe.engines.engine import PlainInnerProduct
from fcaffe.engines.limits import or_plain
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn.operation import Operations

THIN, LARGE = 16, 1 << 20  # most rows of input, fewest weights
FLAT = -2  # use of temporary memory: inputs in C order


class InnerProduct(Operations, PlainInnerProduct):
    """x (M, K), weights (N, K), or (K, N) with `transpose`, bias (N,) or None, y (M, N)."""

    def flat_memory(self, x: Array) -> Array:
        return self.library.temporary_array(FLAT, x.shape, x.dtype)

    @or_plain
    def inner_product_forward(self, x: Array, weights: Array, bias: Array, y: Array, transpose: bool) -> None:
        if x.shape[0] == 1 and weights.size >= LARGE and not transpose:
            with self.in_float32([x], [y]) as (x_, y_):
                self.library.sgemm(weights, x_.T, y_.T)
                if bias is not None:
                    y_ += bias
            return
        factor, shift = weights if transpose else weights.T, None if bias is None else bias[None]
        self.product(x, factor, shift, y, weights=weights)

    @or_plain
    def inner_product_backward_data(self, dy: Array, weights: Array, dx: Array, transpose: bool) -> None:
        if _is_thin(dy.shape[0], weights) and not transpose:
            with self.in_float32([dy], [dx]) as (dy_, dx_):
                self.library.sgemm(dy_, weights, dx_)
            return
        self.product(dy, weights.T if transpose else weights, None, dx, weights=weights)

    @or_plain
    def inner_product_backward_weights(self, x: Array, dy: Array, dweights: Array, transpose: bool, add: bool) -> None:
        if _is_thin(x.shape[0], dweights) and not transpose:
            with self.in_float32([x, dy], []) as (x_, dy_):
                self.library.sgemm(dy_.T, x_, dweights, add)
            return
        first, second = (x, dy) if transpose else (dy, x)
        self.product(first.T, second, None, dweights, add)


def _is_thin(rows: int, weights: np.ndarray) -> bool:
    """Whether most of the time is spent on reading or writing the weights once.

    The gradients are then faster by sgemm than by the primitive, which first reorders the weights into blocks. In the
    forward pass that holds for one row only.
    """
    return 0 < rows <= THIN and weights.size >= LARGE
