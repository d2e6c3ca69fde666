"""libcublas, by ctypes: as many of its functions as fcaffe calls. Matrices are column-major."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from tests.engines.cuda.stand_in_cupy import memory, streams

HANDLE = 0xB1A5
TYPES = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}  # cudaDataType_t
FLOATS, TF32 = 68, 77  # cublasComputeType_t
INVALID = 7


def refuse_capture() -> None:
    """As all of CuPy's own functions do that call cuBLAS."""
    if streams.current().capture:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")


class Library:
    def __init__(self) -> None:
        self.stream: Any = None
        for name, function in (
            ("cublasCreate_v2", _create),
            ("cublasDestroy_v2", lambda handle: int(handle != HANDLE)),
            ("cublasSetStream_v2", self._set_stream),
            ("cublasSetWorkspace_v2", lambda handle, pointer, size: int(handle != HANDLE or pointer % 256 or not size)),
            ("cublasGemmEx", self._gemm),
            ("cublasGemmStridedBatchedEx", self._gemm_each),
        ):
            setattr(self, name, functools.partial(function))  # which takes the attribute argtypes

    def _set_stream(self, handle: int, stream: int) -> int:
        self.stream = stream
        return int(handle != HANDLE)

    def _gemm(
        self, handle: int, across_a: int, across_b: int, m: int, n: int, k: int,
        alpha: int, a: int, a_type: int, lda: int, b: int, b_type: int, ldb: int,
        beta: int, c: int, c_type: int, ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        types = a_type == b_type and c_type in (a_type, 0) and (compute == FLOATS or (compute == TF32 and not a_type))
        rows, columns = (k, m) if across_a else (m, k), (n, k) if across_b else (k, n)
        distances = lda >= max(1, rows[0]) and ldb >= max(1, columns[0]) and ldc >= max(1, m)
        if handle != HANDLE or algorithm != -1 or not types or not distances:
            return INVALID
        left, right, out = (
            _matrix(a, a_type, rows, lda),
            _matrix(b, b_type, columns, ldb),
            _matrix(c, c_type, (m, n), ldc),
        )
        by, keep = (float(memory.host_bytes(scalar, 4).view(np.float32)[0]) for scalar in (alpha, beta))

        def multiply() -> None:
            x, y = left.astype(np.float32), right.astype(np.float32)
            product = by * ((x.T if across_a else x) @ (y.T if across_b else y))
            out[...] = product if keep == 0 else product + keep * out.astype(np.float32)

        streams.put(multiply, self.stream)
        return 0

    def _gemm_each(self, *arguments: int) -> int:
        """The three distances of matrices are behind their leading dimensions, and the count behind the last one."""
        failed = 0
        for index in range(arguments[20]):
            moved = list(arguments)
            for at in (7, 11, 16):
                moved[at] += index * arguments[at + 3] * np.dtype(TYPES[arguments[at + 1]]).itemsize
            failed |= self._gemm(*(one for at, one in enumerate(moved) if at not in (10, 14, 19, 20)))
        return failed


def _create(handle: Any) -> int:
    handle._obj.value = HANDLE
    return 0


def _matrix(pointer: int, kind: int, shape: tuple[int, int], leading: int) -> np.ndarray:
    """The matrix there, live, whose columns begin `leading` values apart."""
    dtype = np.dtype(TYPES[kind])
    flat = memory.as_numpy(pointer, dtype, leading * (shape[1] - 1) + shape[0] if all(shape) else 0)
    return np.lib.stride_tricks.as_strided(flat, shape, (dtype.itemsize, dtype.itemsize * leading))
