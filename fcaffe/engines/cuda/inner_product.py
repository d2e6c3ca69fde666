"""Fully connected layers by cuBLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.cuda.operands import Operands
from fcaffe.engines.inner_product import PlainInnerProduct

Array = Any

REAL_32F, REAL_16F, REAL_16BF = 0, 2, 14  # cudaDataType_t
TYPES = {"float32": REAL_32F, "float16": REAL_16F, "bfloat16": REAL_16BF}
KEEP, TRANSPOSE = 0, 1  # cublasOperation_t
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


class InnerProduct(Operands, PlainInnerProduct):
    """x (M, K), weights (N, K), or (K, N) with `transpose`, bias (N,) or None, y (M, N); see PlainInnerProduct.

    Factors are of the engine's 16-bit type if it has one; sums are float32.
    """

    def inner_product_forward(self, x: Array, weights: Array, bias: Array, y: Array, transpose: bool) -> None:
        if not _is_usual(x, weights, y):
            super().inner_product_forward(x, weights, bias, y, transpose)
            return
        self._multiply(x, weights, y, transpose_b=not transpose)
        if bias is not None:
            self.add_bias(y, bias, relu=False)

    def inner_product_backward_data(self, dy: Array, weights: Array, dx: Array, transpose: bool) -> None:
        if not _is_usual(dy, weights, dx):
            super().inner_product_backward_data(dy, weights, dx, transpose)
            return
        self._multiply(dy, weights, dx, transpose_b=transpose)

    def inner_product_backward_weights(self, x: Array, dy: Array, dweights: Array, transpose: bool, add: bool) -> None:
        if not _is_usual(x, dy, dweights):
            super().inner_product_backward_weights(x, dy, dweights, transpose, add)
            return
        a, b = (x, dy) if transpose else (dy, x)
        self._multiply(a, b, dweights, transpose_a=True, add=add)

    def _multiply(
        self, a: Array, b: Array, c: Array, transpose_a: bool = False, transpose_b: bool = False, add: bool = False
    ) -> None:
        """c (+)= a b, each in C order, either factor transposed.

        To cuBLAS, which counts along columns, a matrix in C order is its transpose; so it is asked for c' = b' a'.
        """
        a, b = self.factor(a), self.factor(b)
        m, n = c.shape
        k = a.shape[0] if transpose_a else a.shape[1]
        cublas = self.xp.cuda.cublas
        handle = self.xp.cuda.device.get_cublas_handle()
        cublas.setStream(handle, self.stream.ptr)
        fast = cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if self.math == "tf32" else cublas.CUBLAS_COMPUTE_32F
        cublas.gemmEx(
            handle,
            TRANSPOSE if transpose_b else KEEP,
            TRANSPOSE if transpose_a else KEEP,
            n,
            m,
            k,
            ONE.ctypes.data,
            b.data.ptr,
            TYPES[b.dtype.name],
            b.shape[1],
            a.data.ptr,
            TYPES[a.dtype.name],
            a.shape[1],
            (ONE if add else ZERO).ctypes.data,
            c.data.ptr,
            TYPES[c.dtype.name],
            n,
            fast,
            cublas.CUBLAS_GEMM_DEFAULT,
        )


def _is_usual(*arrays: Array) -> bool:
    """Whether all are matrices in C order with something in them."""
    return all(array.ndim == 2 and array.size and array.flags.c_contiguous for array in arrays)
