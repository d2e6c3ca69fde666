"""cupy.RawModule and ElementwiseKernel: kernels that g++ compiles."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.engines.cuda import emulator
from tests.engines.cuda.stand_in_cupy import memory, streams
from tests.engines.cuda.stand_in_cupy.arrays import Array, unwrap
from tests.engines.cuda.stand_in_cupy.errors import CompileException

ELEMENTWISE = """
#include <cmath>
#define __device__ static
%(preamble)s
extern "C" void fcaffe_run(const float* const* given, float* results, long count) {
    for (long i = 0; i < count; ++i) {
        %(given)s
        float& result = results[i];
        %(operation)s;
    }
}
"""

launches: list[str] = []  # the names of kernels, as they are launched or recorded


class RawModule:
    def __init__(self, *, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = ()) -> None:
        self._module = emulator.Emulated(code, name_expressions=name_expressions)

    def get_function(self, name: str) -> RawKernel:
        try:
            return RawKernel(name, self._module.get_function(name))
        except emulator.CompileError as problem:
            raise CompileException(str(problem)) from problem


class RawKernel:
    def __init__(self, name: str, kernel: Any) -> None:
        self.name, self._kernel = name, kernel

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
        given = [_pointer(arg) for arg in args]
        launches.append(self.name)
        streams.put(lambda: self._kernel(grid, block, given))


class ElementwiseKernel:
    """A kernel with any number of inputs and one output, `result`, all of which it converts from and to float32."""

    def __init__(self, in_params: str, out_params: str, operation: str, name: str, preamble: str) -> None:
        names = [param.split()[1] for param in in_params.split(", ") if param]
        assert out_params == "Z result"
        given = " ".join(f"const float {name} = given[{index}][i];" for index, name in enumerate(names))
        self.name = name
        self._text = ELEMENTWISE % {"preamble": preamble, "given": given, "operation": operation}

    def __call__(self, *args: Any) -> None:
        *given, out = map(unwrap, args)
        if np.broadcast_shapes(out.shape, *map(np.shape, given)) != out.shape:
            raise ValueError("Out shape is mismatched")
        launches.append(self.name)
        streams.put(lambda: self._compute(given, out))

    def _compute(self, given: Sequence[Any], out: np.ndarray) -> None:
        floats = [np.broadcast_to(each, out.shape).astype(np.float32, order="C") for each in given]
        result = np.empty(out.shape, np.float32)
        pointers = (ctypes.c_void_p * len(floats))(*(each.ctypes.data for each in floats))
        emulator.compiled(self._text).fcaffe_run(pointers, ctypes.c_void_p(result.ctypes.data), ctypes.c_long(out.size))
        out[...] = result.astype(out.dtype)


def _pointer(arg: Any) -> Any:
    """What a launch holds of an argument: an address, not the memory's life."""
    if isinstance(arg, Array):
        return arg._values
    if isinstance(arg, memory.MemoryPointer):
        return _Address(arg.ptr)
    return arg


class _Address:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr
