"""cupy.RawModule: kernels that the emulator runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engines.cuda import emulator
from tests.engines.cuda.stand_in_cupy import memory, streams
from tests.engines.cuda.stand_in_cupy.arrays import Array
from tests.engines.cuda.stand_in_cupy.errors import CompileException

launches: list[str] = []  # the names of kernels, as they are launched or recorded


class RawModule:
    def __init__(
        self,
        *,
        code: str | None = None,
        path: str | None = None,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
        jitify: bool = False,
    ) -> None:
        if code is None or path is not None:
            raise TypeError("the stand-in compiles sources only")
        self._module = emulator.Emulated(code, options=options, name_expressions=name_expressions or ())

    def compile(self, log_stream: Any = None) -> None:
        try:
            self._module.compile()
        except emulator.CompileError as problem:
            raise CompileException(str(problem)) from problem

    def get_function(self, name: str) -> RawKernel:
        self.compile()
        return RawKernel(name, self._module.get_function(name))


class RawKernel:
    def __init__(self, name: str, kernel: Any) -> None:
        self.name, self._kernel = name, kernel
        self.max_dynamic_shared_size_bytes = 49152
        self.num_regs, self.local_size_bytes, self.max_threads_per_block = 32, 0, 1024

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0, stream: Any = None
    ) -> None:
        given = [_pointer(arg) for arg in args]
        launches.append(self.name)
        streams.put(lambda: self._kernel(grid, block, given, shared_mem=shared_mem), stream)


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
