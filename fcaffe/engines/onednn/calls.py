"""Calls of oneDNN's C API through ctypes: loads the library, raises its errors, limits its threads."""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Callable
from ctypes import byref, c_char, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import address, aligned_zeros
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.threads import Threads, is_small
from fcaffe.errors import FcaffeError
from fcaffe.threads import ask_for_short_slices, brief_spinning

STATUS = ["success", "out of memory", "invalid arguments", "unimplemented", "last implementation reached"]
STATUS += ["runtime error", "not required"]
CPU, IN_ORDER = 1, 1
FLOAT32 = np.dtype(np.float32)
LONGEST_COLUMN = 4096  # values of a column whose product with a matrix is not split between threads


class OneDnnError(FcaffeError):
    """A call of oneDNN failed."""


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", ctypes.c_char_p)]


class Calls:
    """An engine and a stream of oneDNN on this machine's CPU. Raises OneDnnError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        try:
            ask_for_short_slices()
            with brief_spinning():
                self.functions = ctypes.CDLL(path)
            self.functions.dnnl_version.restype = ctypes.POINTER(_Version)
            version = self.functions.dnnl_version().contents
        except (OSError, AttributeError) as error:
            raise OneDnnError(f"{path} cannot be used as oneDNN: {error}; --engine numpy does without") from None
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != dnnl.VERSION:
            raise OneDnnError(
                f"{path} is oneDNN {self.version}, and version {dnnl.VERSION} is needed; --engine numpy does without"
            )
        self.threads = Threads(path)
        self.engine = self.create("engine_create", c_int(CPU), c_size_t(0))
        self.stream = self.create("stream_create", self.engine, c_int(IN_ORDER))
        execute = self.functions.dnnl_primitive_execute
        execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.execute = self._limited(execute)
        # PyDLL keeps Python's lock: releasing it takes longer than the call.
        self.set_data_handle = ctypes.PyDLL(path).dnnl_memory_set_data_handle
        self.set_data_handle.argtypes = [c_void_p, c_void_p]
        sgemm = self.functions.dnnl_sgemm
        matrix: list[Any] = [c_void_p, c_int64]
        sgemm.argtypes = [c_char, c_char, *[c_int64] * 3, c_float, *matrix, *matrix, c_float, *matrix]
        self.product = self._limited(sgemm)
        self._memory: dict[int, np.ndarray] = {}
        self.tape: Any = None  # records calls; see `fcaffe.engines.onednn.tape`

    def sgemm(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool = False) -> None:
        """c = a @ b, or with `add` c += a @ b; a and b have contiguous rows or columns."""
        (turn_a, step_a), (turn_b, step_b) = _as_blas(a), _as_blas(b)
        (rows, inner), columns, step_c = a.shape, b.shape[1], c.shape[1]
        addresses = address(a), address(b), address(c)
        factors = addresses[0], step_a, addresses[1], step_b, float(add), addresses[2], step_c
        arguments = turn_a, turn_b, rows, columns, inner, 1.0, *factors
        # The sums of a longer column, or of several, are split between the threads.
        by_one = columns == 1 and inner <= LONGEST_COLUMN and is_small((a, b, c), rows * inner)
        call = functools.partial(self.product, *arguments)
        if self.tape is not None:
            self.tape.add(call, by_one, addresses)
        self._check("sgemm", self.threads.run_with_one(call) if by_one else call())

    def has(self, instructions: int) -> bool:
        """Whether the processor has these instructions. Without AVX512_CORE the library lacks some fast code."""
        return self.functions.dnnl_get_effective_cpu_isa() & instructions == instructions

    def call(self, name: str, *arguments: Any) -> None:
        """Call dnnl_`name`. Raises OneDnnError with the status' meaning."""
        with self.threads.within():  # a primitive is compiled for this number of threads
            self._check(name, getattr(self.functions, "dnnl_" + name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            meaning = STATUS[status] if status < len(STATUS) else str(status)
            raise OneDnnError(f"oneDNN {self.version}: dnnl_{name}: {meaning}")

    def create(self, name: str, *arguments: Any) -> c_void_p:
        """Call a function that returns a new object by its first argument."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle

    def destroy_with(self, owner: object, kind: str, handle: c_void_p) -> None:
        """Destroy a handle when its owner is collected, but not at the end of the process."""
        weakref.finalize(owner, self.call, f"{kind}_destroy", handle).atexit = False

    def temporary(self, use: int, size: int) -> int:
        """The address of `size` bytes, valid until the next request for the same use."""
        return address(self._temporary(use, size))

    def temporary_array(self, use: int, shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT32) -> np.ndarray:
        """The same as an array in C order."""
        count = math.prod(shape)
        return self._temporary(use, count * dtype.itemsize).view(dtype)[:count].reshape(shape)

    def temporaries(self) -> list[np.ndarray]:
        """The memory that `temporary` hands out now."""
        return list(self._memory.values())

    def _limited(self, function: Callable[..., int]) -> Callable[..., int]:
        """The function with no more threads than fcaffe may use."""
        if not self.threads.are_limited:
            return function

        def within(*arguments: Any) -> int:
            with self.threads.within():
                return function(*arguments)

        return within

    def _temporary(self, use: int, size: int) -> np.ndarray:
        memory = self._memory.get(use)
        if memory is None or memory.nbytes < size:
            memory = self._memory[use] = aligned_zeros(np, -(-size // 4))
        return memory


def _as_blas(matrix: np.ndarray) -> tuple[bytes, int]:
    """Whether it is a transpose (T) or not (N), and the leading dimension."""
    if matrix.strides[0] == matrix.itemsize and not matrix.flags.c_contiguous:
        return b"T", matrix.strides[1] // matrix.itemsize
    return b"N", matrix.strides[0] // matrix.itemsize if matrix.shape[0] > 1 else matrix.shape[1]
