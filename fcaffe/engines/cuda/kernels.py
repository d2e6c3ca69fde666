"""Our own kernels: CUDA C++ in sources/, compiled by NVRTC through CuPy when first launched, and those of formulas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy

from fcaffe.engines.formulas import PREAMBLE, Formula
from fcaffe.errors import FcaffeError

SOURCES = Path(__file__).with_name("sources")
TYPES = SOURCES / "types.cuh"
OPTIONS = ("--std=c++17",)
CPP_TYPES = {"float32": "float", "float16": "half_t", "bfloat16": "bfloat_t"}
THREADS = 256
MOST_BLOCKS = 132 * 16  # two waves of full multiprocessors on an H100 or H200; grid-stride loops do the rest


class Kernels:
    """Compiles and launches the kernels of sources/*.cu and of formulas; `cupy` is the module."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._functions: dict[tuple[Any, ...], Any] = {}

    def launch(
        self,
        source: str,
        kernel: str,
        types: tuple[Any, ...],
        blocks: int | tuple[int, ...],
        threads: int | tuple[int, ...],
        *args: Any,
    ) -> None:
        """Run template `kernel`<types> of sources/`source`.cu on the current stream, unless the grid has no blocks.

        `args` are arrays, passed as pointers, and NumPy scalars of the parameters' types.
        Raises FcaffeError if the source does not compile.
        """
        for arg in args:
            if isinstance(arg, (bool, int, float)) and not isinstance(arg, numpy.generic):
                raise TypeError(f"{kernel} takes NumPy scalars such as numpy.int32({arg}), since Python's have no size")
        grid = blocks if isinstance(blocks, tuple) else (blocks,)
        if 0 in grid:
            return
        key = source, kernel, types
        if key not in self._functions:
            self._functions[key] = self._compile(source, expression(kernel, types))
        self._functions[key](grid, threads if isinstance(threads, tuple) else (threads,), args)

    def of_formula(self, formula: Formula, operands: Mapping[str, Any], out: Any) -> None:
        """Run CuPy's kernel of a formula for arrays of any types, and NumPy scalars of float32."""
        scalars = [isinstance(each, numpy.generic) for each in operands.values()]
        key = formula.c, *operands, *scalars
        if key not in self._functions:
            types = [
                "float32" if is_scalar else letter for letter, is_scalar in zip(ascii_uppercase, scalars, strict=False)
            ]
            given = ", ".join(f"{kind} {name}_" for kind, name in zip(types, operands, strict=True))
            floats = "".join(f"const float {name} = {name}_; " for name in operands)
            self._functions[key] = self._cupy.ElementwiseKernel(
                given, "Z result", f"{floats}result = {formula.c}", "pointwise", preamble=PREAMBLE
            )
        self._functions[key](*operands.values(), out)

    def _compile(self, source: str, name: str) -> Any:
        try:
            text = source_text(source)
            return self._cupy.RawModule(code=text, options=OPTIONS, name_expressions=[name]).get_function(name)
        except Exception as error:  # CuPy's differ by the step that fails
            log = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
            raise FcaffeError(
                f"CUDA kernel {name} of sources/{source}.cu cannot be compiled and loaded: {log}"
            ) from error


def blocks_for(count: int, threads: int = THREADS, per_thread: int = 1) -> int:
    """Number of blocks for a grid-stride loop over `count` items, of which a thread takes `per_thread` at a time.
    No more than keep the device busy."""
    return min(-(-count // (threads * per_thread)), MOST_BLOCKS)


def source_text(source: str) -> str:
    """The text that NVRTC compiles for sources/`source`.cu."""
    return f'{TYPES.read_text()}\n#line 1 "{source}.cu"\n{(SOURCES / f"{source}.cu").read_text()}'


def expression(kernel: str, types: tuple[Any, ...]) -> str:
    """The instance of a kernel for dtypes and integers in C++, such as average_pool_forward<float, 4>."""
    arguments = [str(each) if isinstance(each, int) else CPP_TYPES[numpy.dtype(each).name] for each in types]
    return f"{kernel}<{', '.join(arguments)}>" if arguments else kernel
