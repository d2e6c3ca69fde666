"""A module that behaves like CuPy as far as fcaffe uses it, on the CPU.

`cupy` is the module; `install` lets `import cupy` find it. What made the host wait is listed
in `synchronisations`, what copied pageable host memory to the device in `uploads`: neither may be part of a graph. For
stand-ins of other libraries: `memory_at(pointer)` and `as_numpy(pointer, dtype, count)` are device memory, live;
`put(work, stream)` does work on it, or records it where that stream captures.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import (
    arrays,
    errors,
    functions,
    memory,
    nccl,
    operators,
    raw_module,
    runtime,
    streams,
)

if TYPE_CHECKING:  # ranks, of which tests start many, do without it
    import pytest
from tests.engines.cuda.stand_in_cupy.cublas import Library as CublasLibrary
from tests.engines.cuda.stand_in_cupy.errors import synchronisations, uploads
from tests.engines.cuda.stand_in_cupy.memory import as_numpy, memory_at
from tests.engines.cuda.stand_in_cupy.streams import calls, put, put_off_all_work, stream_at, used

__all__ = ["CublasLibrary", "as_numpy", "calls", "memory_at", "nccl", "put", "put_off_all_work", "runtime"]
__all__ += ["stream_at", "used"]


def _module(name: str, **content: Any) -> Any:
    made = ModuleType(name)
    made.__dict__.update(content)
    return made


operators.give_operators()
arrays.Array.__name__ = arrays.Array.__qualname__ = "ndarray"
arrays.Array.__module__ = "cupy"

cuda = _module(
    "cupy.cuda",
    Device=runtime.Device,
    Event=streams.Event,
    MemoryPool=memory.MemoryPool,
    PinnedMemoryPointer=memory.PinnedMemoryPointer,
    Stream=streams.Stream,
    alloc_pinned_memory=memory.alloc_pinned_memory,
    cublas=_module("cupy.cuda.cublas"),  # whose import loads the library
    compiler=_module("cupy.cuda.compiler", CompileException=errors.CompileException),
    driver=_module("cupy.cuda.driver", CUDADriverError=errors.CUDADriverError),
    get_current_stream=streams.current,
    memory=_module("cupy.cuda.memory", OutOfMemoryError=errors.OutOfMemoryError),
    nccl=nccl.module,
    nvrtc=_module("cupy.cuda.nvrtc", getVersion=lambda: (13, 5)),
    runtime=runtime.module,
    using_allocator=memory.using_allocator,
)
cupy = _module(
    "cupy",
    **functions.members,
    ElementwiseKernel=raw_module.ElementwiseKernel,
    RawModule=raw_module.RawModule,
    __version__="14.2.0",
    cuda=cuda,
    get_default_memory_pool=lambda: memory.default_pool,
    lib=_module("cupy.lib", stride_tricks=_module("cupy.lib.stride_tricks", as_strided=functions.as_strided)),
    ndarray=arrays.Array,
)


def install(monkeypatch: pytest.MonkeyPatch | None) -> Any:
    """Let `import cupy` find the stand-in for the length of a test, or for good; returns it."""
    put_in = monkeypatch.setitem if monkeypatch else operator.setitem
    for module in (cupy, cuda, *vars(cuda).values(), cupy.lib, cupy.lib.stride_tricks):
        if isinstance(module, ModuleType):
            put_in(sys.modules, module.__name__, module)
    return cupy


def reset() -> None:
    """What a failed test left behind is gone: captures, the current stream, the lists."""
    streams.reset()
    for noted in (synchronisations, uploads, raw_module.launches):
        noted.clear()


@contextlib.contextmanager
def watched() -> Iterator[tuple[list[str], list[str]]]:
    """(synchronisations, uploads) of the body, in lists that are complete at its end."""
    starts = len(synchronisations), len(uploads)
    waited: list[str] = []
    copied: list[str] = []
    try:
        yield waited, copied
    finally:
        waited += synchronisations[starts[0] :]
        copied += uploads[starts[1] :]


def live(array: Any) -> np.ndarray:
    """An array's values where they lie, for work that is `put` on a stream."""
    return array._values if isinstance(array, arrays.Array) else array


def host(array: Any) -> np.ndarray:
    """An array's values as they are, whatever goes on: for the eyes of tests."""
    return array._values.copy() if isinstance(array, arrays.Array) else np.asarray(array)
