"""Runs CUDA kernels on the CPU: g++ compiles them behind shim.h, which plays the GPU.

Slow, exact about what a kernel may assume, and there without a GPU. `Emulated` has the face of cupy.RawModule.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

SHIM = Path(__file__).with_name("shim.h")
FLAGS = ["-O1", "-std=gnu++17", "-shared", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w"]
FLAGS += ["-U_FORTIFY_SOURCE"]  # or longjmp to another stack is taken for an error
CACHE = Path(tempfile.gettempdir()) / f"fcaffe-emulated-kernels-{os.getuid()}"
MOST_THREADS, MOST_BLOCKS = 1024, ((1 << 31) - 1, 65535, 65535)

MAIN = """
extern "C" const char* fcaffe_signature(int index) {
    static std::string text;
    switch (index) { %(signatures)s }
    return text.c_str();
}
extern "C" const char* fcaffe_run(int index, const unsigned* grid, const unsigned* block, void** arguments) {
    dim3 blocks{grid[0], grid[1], grid[2]}, threads{block[0], block[1], block[2]};
    switch (index) { %(runs)s }
    return emulated::failure.c_str();
}
"""

_device = threading.Lock()  # the emulated GPU runs one kernel at a time

has_compiler = shutil.which("g++") is not None


class CompileError(Exception):
    """g++'s words."""


class LaunchError(Exception):
    """A kernel was launched in a way, or did something, that a GPU would not take, or would take wrongly."""


class Emulated:
    """The kernels of a source by name expressions such as "add<float>"; compiled when first asked for."""

    def __init__(self, code: str, *, name_expressions: Sequence[str], **_: Any) -> None:
        self._code, self._names = code, list(name_expressions)

    def get_function(self, name: str) -> EmulatedKernel:
        if name not in self._names:
            raise CompileError(f"{name} is not among the name expressions {', '.join(self._names)}")
        library = compiled(self._text())
        library.fcaffe_signature.restype = library.fcaffe_run.restype = ctypes.c_char_p
        return EmulatedKernel(library, self._names.index(name), name)

    def _text(self) -> str:
        cases = {
            "signatures": "case {0}: text = emulated::signature(&{1}); break;",
            "runs": "case {0}: emulated::run(&{1}, blocks, threads, arguments); break;",
        }
        parts = {key: " ".join(map(case.format, range(len(self._names)), self._names)) for key, case in cases.items()}
        return f"{SHIM.read_text()}\n{self._code}\n{MAIN % parts}"


class EmulatedKernel:
    """kernel(grid, block, args), as cupy.RawKernel; arrays may be NumPy's or have `.data.ptr`."""

    def __init__(self, library: Any, index: int, name: str) -> None:
        self._library, self._index, self.name = library, index, name
        self._types = library.fcaffe_signature(index).decode().split()

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        if min(*grid, *block) < 1 or numpy.prod(block) > MOST_THREADS:
            raise LaunchError(f"{self.name}: no GPU runs {grid} blocks of {block} threads")
        if any(size > most for size, most in zip(grid, MOST_BLOCKS, strict=True)):
            raise LaunchError(f"{self.name}: no GPU runs {grid} blocks")
        given = [_code(arg) for arg in args]
        fits = len(given) == len(self._types) and all(map(_fits, given, self._types))
        if not fits:
            raise LaunchError(f"{self.name} takes ({', '.join(self._types)}), not ({', '.join(given)})")
        values = [_value(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        three = ctypes.c_uint * 3
        with _device:
            failure = self._library.fcaffe_run(self._index, three(*grid), three(*block), pointers).decode()
        if failure:
            raise LaunchError(f"{self.name}: {failure}")


def compiled(text: str) -> ctypes.CDLL:
    """The shared library of this text: from the cache, or newly made by the first of the processes that ask for it."""
    name = hashlib.sha256("\n".join([text, *FLAGS]).encode()).hexdigest()[:32]
    path, source, made = (CACHE / f"{name}.{kind}" for kind in ("so", "cpp", "part"))
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                source.write_text(text)
                done = subprocess.run(
                    ["g++", *FLAGS, str(source), "-o", str(made)], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise CompileError(done.stderr)
                os.replace(made, path)
    return ctypes.CDLL(str(path))


def _code(arg: Any) -> str:
    """The type of an argument as shim.h writes it."""
    if isinstance(arg, numpy.generic):
        return _dtype_code(arg.dtype)
    if hasattr(arg, "dtype"):
        return "*" + _dtype_code(numpy.dtype(arg.dtype))
    if hasattr(arg, "ptr"):
        return "*?"
    raise LaunchError(f"a kernel takes arrays and NumPy scalars, not {type(arg).__name__} {arg!r}")


def _dtype_code(dtype: numpy.dtype) -> str:
    if dtype.name in ("float16", "bfloat16"):
        return {"float16": "h2", "bfloat16": "b2"}[dtype.name]
    kind = {"f": "f", "i": "i", "u": "i", "b": "i"}.get(dtype.kind, "v")
    return f"{kind}{dtype.itemsize}"


def _fits(given: str, wanted: str) -> bool:
    if wanted[0] == "*":
        return given == wanted or given in ("*?", "i8") or (given[0] == "*" and wanted == "*?")
    return given == wanted


def _value(arg: Any) -> numpy.ndarray:
    """What the kernel's parameter holds, as an array of one value."""
    if isinstance(arg, numpy.generic):
        return numpy.array(arg)
    if isinstance(arg, numpy.ndarray):
        return numpy.array(arg.ctypes.data, numpy.uint64)
    return numpy.array(arg.ptr if hasattr(arg, "ptr") else arg.data.ptr, numpy.uint64)
