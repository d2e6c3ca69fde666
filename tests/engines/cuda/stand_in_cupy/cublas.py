"""libcublas: matrix products by pointers, column-major, on the stream of the handle."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import memory, streams
from tests.engines.cuda.stand_in_cupy.errors import CUBLASError

HANDLE = 0xB1A5
N, T, C = range(3)
R_32F, R_64F, R_16F, R_16BF = 0, 1, 2, 14
ITEM = {R_32F: 4, R_64F: 8, R_16F: 2, R_16BF: 2}
COMPUTE = {
    64: (R_16F,),
    68: (R_32F, R_16F, R_16BF),
    69: (R_32F, R_16F, R_16BF),
    74: (R_32F,),
    75: (R_32F,),
    77: (R_32F,),
    70: (R_64F,),
}  # in-types

calls: list[str] = []  # the products, for tests


def refuse_capture() -> None:
    """As all of CuPy's own functions do that call cuBLAS."""
    if streams.current().capture:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")


def gemm(
    stream: int, handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, a_type: int, lda: int, b: int, b_type: int, ldb: int,
    beta: int, c: int, c_type: int, ldc: int, compute: int,
) -> None:  # fmt: skip
    _check(handle == HANDLE, "handle")
    _check(compute in COMPUTE and a_type in COMPUTE[compute] and a_type == b_type, f"compute type {compute}")
    _check(c_type in (a_type, R_32F), f"types {a_type} and {c_type}")
    _check(lda >= max(1, m if transa == N else k), f"lda {lda}")
    _check(ldb >= max(1, k if transb == N else n), f"ldb {ldb}")
    _check(ldc >= max(1, m), f"ldc {ldc}")
    left = _matrix(a, a_type, m if transa == N else k, k if transa == N else m, lda)
    right = _matrix(b, b_type, k if transb == N else n, n if transb == N else k, ldb)
    out = _matrix(c, c_type, m, n, ldc)
    scales = [_scalar(alpha, compute), _scalar(beta, compute)]
    calls.append(f"{'NTC'[transa]}{'NTC'[transb]} {m} x {n} x {k}, types {a_type} to {c_type}, compute {compute}")

    def multiply() -> None:
        by, keep = (float(each[0]) for each in scales)
        x, y = _read(left, a_type), _read(right, b_type)
        product = by * ((x.T if transa != N else x) @ (y.T if transb != N else y))
        _write(out, c_type, product if keep == 0 else product + keep * _read(out, c_type))

    streams.put(multiply, stream)


class Library:
    """libcublas, by ctypes: as many of its functions as fcaffe calls."""

    def __init__(self) -> None:
        self.stream: Any = None
        for name, function in (
            ("cublasCreate_v2", _create),
            ("cublasDestroy_v2", lambda handle: int(handle != HANDLE)),
            ("cublasSetStream_v2", self._set_stream),
            ("cublasSetWorkspace_v2", lambda handle, pointer, size: int(handle != HANDLE or pointer % 256 or not size)),
            ("cublasGemmEx", self._gemm_ex),
            ("cublasGemmStridedBatchedEx", self._gemm_each),
        ):
            setattr(self, name, functools.partial(function))  # which takes the attribute argtypes

    def _set_stream(self, handle: int, stream: int) -> int:
        self.stream = stream
        return int(handle != HANDLE)

    def _gemm_ex(self, *arguments: int) -> int:
        *others, algorithm = arguments
        try:
            gemm(self.stream, *others)
        except CUBLASError:
            return 7
        return int(algorithm != -1)

    def _gemm_each(self, *arguments: int) -> int:
        """The three distances of matrices are behind their leading dimensions, and the count behind the last one."""
        failed = 0
        for index in range(arguments[20]):
            moved = list(arguments)
            for at in (7, 11, 16):
                moved[at] += index * arguments[at + 3] * ITEM[arguments[at + 1]]
            failed |= self._gemm_ex(*(one for at, one in enumerate(moved) if at not in (10, 14, 19, 20)))
        return failed


def _create(handle: Any) -> int:
    handle._obj.value = HANDLE
    return 0


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: {what}")


def _scalar(pointer: int, compute: int) -> np.ndarray:
    dtype = np.float64 if compute == 70 else np.float32
    return memory.host_bytes(pointer, np.dtype(dtype).itemsize).view(dtype).copy()


def _matrix(pointer: int, kind: int, rows: int, columns: int, leading: int) -> np.ndarray:
    """(rows, columns) of raw items, columns `leading` apart."""
    raw = {2: np.uint16, 4: np.float32, 8: np.float64}[ITEM[kind]]
    count = leading * (columns - 1) + rows if rows and columns else 0
    flat = memory.as_numpy(pointer, np.uint8, count * ITEM[kind])
    if pointer % ITEM[kind]:
        raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE: alignment")
    return np.ndarray((rows, columns), raw, flat if count else None, 0, (ITEM[kind], ITEM[kind] * leading))


def _read(matrix: np.ndarray, kind: int) -> np.ndarray:
    if kind == R_16F:
        return matrix.view(np.float16).astype(np.float32) if matrix.size else matrix.astype(np.float32)
    if kind == R_16BF:
        return (matrix.astype(np.uint32) << 16).view(np.float32)
    return matrix


def _write(matrix: np.ndarray, kind: int, values: np.ndarray) -> None:
    if kind == R_16F:
        matrix[...] = values.astype(np.float16).view(np.uint16)
    elif kind == R_16BF:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        matrix[...] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    else:
        matrix[...] = values
