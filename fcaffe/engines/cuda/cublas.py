"""Matrix products by cuBLAS through ctypes, since CuPy's own bindings cannot be recorded into CUDA graphs."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_int, c_longlong, c_size_t, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import Array

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType_t
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77  # cublasComputeType_t
DEFAULT = -1  # cublasGemmAlgo_t
WORKSPACE = 32 << 20  # bytes, as NVIDIA recommends for Hopper; cuBLAS would take memory while a graph is recorded
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)

MATRIX = (c_void_p, c_int, c_int)  # address, type, leading dimension
MATRICES = (*MATRIX, c_longlong)  # and the distance of two
ARGUMENTS = {
    "cublasCreate_v2": (c_void_p,),
    "cublasDestroy_v2": (c_void_p,),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasGemmEx": (c_void_p, *(c_int,) * 5, c_void_p, *MATRIX, *MATRIX, c_void_p, *MATRIX, c_int, c_int),
    "cublasGemmStridedBatchedEx": (
        *(c_void_p, *(c_int,) * 5, c_void_p, *MATRICES, *MATRICES, c_void_p, *MATRICES),
        *(c_int, c_int, c_int),
    ),
}


class CublasError(RuntimeError):
    """A call of cuBLAS failed."""


class Cublas:
    """cuBLAS on one stream of the current device."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._library = open_library(cupy.cuda.runtime.runtimeGetVersion() // 1000)
        self._library.cublasDestroy_v2.argtypes = ARGUMENTS["cublasDestroy_v2"]  # which the finalizer calls
        handle = c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(handle))
        self._handle = handle.value
        weakref.finalize(self, self._library.cublasDestroy_v2, self._handle).atexit = False
        self._workspace = cupy.empty(WORKSPACE, np.uint8)
        self._call("cublasSetStream_v2", self._handle, stream.ptr)
        self._call("cublasSetWorkspace_v2", self._handle, self._workspace.data.ptr, WORKSPACE)

    def multiply(
        self, a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, add: bool, tf32: bool
    ) -> None:
        """c = a b, or with `add` c += a b. Matrices are in C order; a and b have one type, c has that or float32.

        cuBLAS expects column-major matrices and sees transposes. So it computes c' = b' a'.
        """
        m, n = c.shape
        k = a.shape[0] if transpose_a else a.shape[1]
        self._call(
            "cublasGemmEx",
            *(self._handle, int(transpose_b), int(transpose_a), n, m, k, ONE.ctypes.data),
            *(b.data.ptr, TYPES[b.dtype.name], b.shape[1]),
            *(a.data.ptr, TYPES[a.dtype.name], a.shape[1]),
            *((ONE if add else ZERO).ctypes.data, c.data.ptr, TYPES[c.dtype.name], n),
            *(COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F, DEFAULT),
        )

    def multiply_each(self, a: Array, b: Array, c: Array, tf32: bool) -> None:
        """c[i] = a[i] b[i] for three arrays of matrices in C order; types as in `multiply`. Not run on a GPU so far."""
        (count, m, n), k = c.shape, a.shape[2]
        self._call(
            "cublasGemmStridedBatchedEx",
            *(self._handle, 0, 0, n, m, k, ONE.ctypes.data),  # 0: not transposed
            *(b.data.ptr, TYPES[b.dtype.name], n, k * n),
            *(a.data.ptr, TYPES[a.dtype.name], k, m * k),
            *(ZERO.ctypes.data, c.data.ptr, TYPES[c.dtype.name], n, m * n),
            *(count, COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F, DEFAULT),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function.argtypes = ARGUMENTS[name]
        if status := function(*arguments):
            raise CublasError(f"{name} fails with cuBLAS's status {status}")


def open_library(cuda: int) -> Any:
    """The library for CUDA's major version, which `libraries.load` has found."""
    return ctypes.CDLL(f"libcublas.so.{cuda}")
