"""Calls of oneDNN's C API through ctypes: the library is loaded, its errors are told, its threads are kept few."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Collection, Iterator
from ctypes import byref, c_char, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import address, aligned_zeros
from fcaffe.engines.onednn import dnnl
from fcaffe.errors import FcaffeError
from fcaffe.threads import wanted_threads

STATUS = ["success", "out of memory", "invalid arguments", "unimplemented", "last implementation reached"]
STATUS += ["runtime error", "not required"]
CPU, IN_ORDER = 1, 1


class OneDnnError(FcaffeError):
    """A call of oneDNN failed."""


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", ctypes.c_char_p)]


class Calls:
    """An engine and a stream of oneDNN on this machine's CPU. Raises OneDnnError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        try:
            self.functions = ctypes.CDLL(path)
            version = self._pointer("version", _Version)
        except (OSError, AttributeError) as error:
            raise OneDnnError(f"{path} cannot be used as oneDNN: {error}; --engine numpy does without") from None
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != dnnl.VERSION:
            raise OneDnnError(
                f"{path} is oneDNN {self.version}, and version {dnnl.VERSION} is needed; --engine numpy does without"
            )
        self._few: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._keep_threads_within(wanted_threads())
        self.engine = self.create("engine_create", c_int(CPU), c_size_t(0))
        self.stream = self.create("stream_create", self.engine, c_int(IN_ORDER))
        self._execute = self.functions.dnnl_primitive_execute
        self._execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.execute = self._execute if self._few is contextlib.nullcontext else self._execute_with_few
        # Without giving Python's lock away, which would cost more than the call.
        self.set_data_handle = ctypes.PyDLL(path).dnnl_memory_set_data_handle
        self.set_data_handle.argtypes = [c_void_p, c_void_p]
        self._sgemm = self.functions.dnnl_sgemm
        matrix: list[Any] = [c_void_p, c_int64]
        self._sgemm.argtypes = [c_char, c_char, *[c_int64] * 3, c_float, *matrix, *matrix, c_float, *matrix]
        self._memory: dict[int, np.ndarray] = {}
        self.kept: dict[tuple[tuple[int, ...], Any], Any] | None = None  # see Engine.fixed_weights
        self.tape: Any = None  # that takes down what is executed
        self.changing: Collection[int] = ()  # addresses of weights that are not to be kept

    def sgemm(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool = False) -> None:
        """c = a @ b, or with `add` so much more; a and b are C-contiguous float32 matrices or transposes of such."""
        (turn_a, step_a), (turn_b, step_b) = _as_blas(a), _as_blas(b)
        (rows, inner), columns, step_c = a.shape, b.shape[1], c.shape[1]
        factors = address(a), step_a, address(b), step_b, float(add)
        with self._few():
            status = self._sgemm(turn_a, turn_b, rows, columns, inner, 1.0, *factors, address(c), step_c)
        if status:
            raise OneDnnError(f"oneDNN {self.version}: dnnl_sgemm: {STATUS[status]}")

    def has_bf16(self) -> bool:
        """Whether the processor multiplies bfloat16 numbers."""
        return self.functions.dnnl_get_effective_cpu_isa() & dnnl.AVX512_BF16 == dnnl.AVX512_BF16

    def has_avx512(self) -> bool:
        """Whether the processor has vectors of 16 float32 values, without which the library lacks some fast code."""
        return self.functions.dnnl_get_effective_cpu_isa() & dnnl.AVX512_CORE == dnnl.AVX512_CORE

    def call(self, name: str, *arguments: Any) -> None:
        """Call dnnl_`name`. Raises OneDnnError with the status' meaning."""
        with self._few():  # also where a primitive is made, which is then cut for so many threads
            status = getattr(self.functions, "dnnl_" + name)(*arguments)
        if status:
            meaning = STATUS[status] if status < len(STATUS) else str(status)
            raise OneDnnError(f"oneDNN {self.version}: dnnl_{name}: {meaning}")

    def create(self, name: str, *arguments: Any) -> c_void_p:
        """Call a function that returns a new object by its first argument."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made

    def destroy_with(self, owner: object, kind: str, handle: c_void_p) -> None:
        """Give a handle back when its owner goes, unless everything goes."""
        weakref.finalize(owner, self.call, f"{kind}_destroy", handle).atexit = False

    def temporary(self, use: int, size: int) -> int:
        """The address of `size` bytes that hold until the same use is asked for again."""
        memory = self._memory.get(use)
        if memory is None or memory.nbytes < size:
            memory = self._memory[use] = aligned_zeros(np, -(-size // 4))
        return address(memory)

    def temporaries(self) -> list[np.ndarray]:
        """The memory that `temporary` hands out now."""
        return list(self._memory.values())

    def keep(self, key: tuple[tuple[int, ...], Any], size: int) -> tuple[int, bool]:
        """The address of memory that is kept under this key for as long as `kept` is, and whether it is new."""
        assert self.kept is not None
        is_new = key not in self.kept
        if is_new:
            self.kept[key] = aligned_zeros(np, -(-size // 4))
        return address(self.kept[key]), is_new

    def _keep_threads_within(self, most: int) -> None:
        """Use no more threads than that, where OpenMP would.

        On the command line OpenMP itself was told. In a program that uses fcaffe as a library it may serve others as
        well, so it is told for the time of each call, and only if it has not been told by the user.
        """
        try:
            get, put = self.functions.omp_get_max_threads, self.functions.omp_set_num_threads
        except AttributeError:
            return  # a oneDNN of another threading
        if os.environ.get("OMP_NUM_THREADS") or get() <= most:
            return

        @contextlib.contextmanager
        def few() -> Iterator[None]:
            before = get()
            put(min(before, most))
            try:
                yield
            finally:
                put(before)

        self._few = few

    def _execute_with_few(self, *arguments: Any) -> int:
        with self._few():
            return int(self._execute(*arguments))

    def _pointer(self, name: str, kind: Any) -> Any:
        function = getattr(self.functions, "dnnl_" + name)
        function.restype = ctypes.POINTER(kind)
        return function().contents


def _as_blas(matrix: np.ndarray) -> tuple[bytes, int]:
    """Whether it is a transpose (T) or not (N), and how far apart the rows of what is stored lie."""
    return (b"N", matrix.shape[1]) if matrix.flags.c_contiguous else (b"T", matrix.shape[0])
