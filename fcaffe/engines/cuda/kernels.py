"""Our own kernels: CUDA C++ in sources/, compiled by NVRTC through CuPy when first launched."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from fcaffe.errors import FcaffeError

SOURCES = Path(__file__).with_name("sources")
TYPES = SOURCES / "types.cuh"
OPTIONS = ("--std=c++17",)
FLOATS = ("float", "half_t", "bfloat_t")
CPP_TYPES = {
    "float32": "float",
    "float16": "half_t",
    "bfloat16": "bfloat_t",
    "int32": "int",
    "int64": "int64",
    "uint8": "unsigned char",
    "bool": "bool",
}
THREADS = 256
MOST_BLOCKS = 132 * 16  # two waves of full multiprocessors on an H100 or H200; grid-stride loops do the rest

TemplateArgument = Any  # a dtype, an integer or a truth value


class Kernels:
    """Compiles and launches the kernels of sources/*.cu; `cupy` is the module."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._functions: dict[tuple[str, str, tuple[TemplateArgument, ...]], Any] = {}
        self._modules: dict[tuple[str, str], Any] = {}

    def launch(
        self,
        source: str,
        kernel: str,
        types: tuple[TemplateArgument, ...],
        blocks: int | tuple[int, ...],
        threads: int | tuple[int, ...],
        *args: Any,
        shared: int = 0,
    ) -> None:
        """Run template `kernel`<types> of sources/`source`.cu on the current stream, unless the grid has no blocks.

        `args` are arrays, passed as pointers, and NumPy scalars of the parameters' types; `shared` counts bytes.
        Raises FcaffeError if the source does not list this instance, or does not compile.
        """
        for arg in args:
            if isinstance(arg, (bool, int, float)) and not isinstance(arg, numpy.generic):
                raise TypeError(f"{kernel} takes NumPy scalars such as numpy.int32({arg}), since Python's have no size")
        grid = blocks if isinstance(blocks, tuple) else (blocks,)
        if 0 in grid:
            return
        function = self._functions.get((source, kernel, types)) or self._compile(source, kernel, types)
        function(grid, threads if isinstance(threads, tuple) else (threads,), args, shared_mem=shared)

    def _compile(self, source: str, kernel: str, types: tuple[TemplateArgument, ...]) -> Any:
        """Compile the kernel, in one module with all instances that have the same first template argument."""
        arguments = tuple(_spelling(each) for each in types)
        name = expression(kernel, arguments)
        listed = instances(source)
        if name not in listed:
            raise FcaffeError(f"sources/{source}.cu has no {name}; INSTANCES there lists {', '.join(listed) or 'none'}")
        group = arguments[0] if arguments else ""
        try:
            if (source, group) not in self._modules:
                names = [each for each, first in listed.items() if first == group]
                text = source_text(source)
                self._modules[source, group] = self._cupy.RawModule(code=text, options=OPTIONS, name_expressions=names)
            function = self._modules[source, group].get_function(name)
        except Exception as error:  # CuPy's differ by the step that fails
            log = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
            raise FcaffeError(
                f"CUDA kernel {name} of sources/{source}.cu cannot be compiled and loaded: {log}"
            ) from error
        self._functions[source, kernel, types] = function
        return function


def blocks_for(count: int, threads: int = THREADS, per_thread: int = 1) -> int:
    """Number of blocks for a grid-stride loop over `count` items, of which a thread takes `per_thread` at a time.
    No more than keep the device busy."""
    return min(-(-count // (threads * per_thread)), MOST_BLOCKS)


def source_text(source: str) -> str:
    """The text that NVRTC compiles for sources/`source`.cu."""
    return f'{TYPES.read_text()}\n#line 1 "{source}.cu"\n{(SOURCES / f"{source}.cu").read_text()}'


@functools.cache
def instances(source: str) -> dict[str, str]:
    """The kernels that INSTANCES lists in sources/`source`.cu: C++ expressions, each with its first template argument
    ("" if it has none)."""
    found = {}
    for content in re.findall(r"^INSTANCES\(([^)]*)\)", (SOURCES / f"{source}.cu").read_text(), re.MULTILINE):
        kernel, *items = (item.strip() for item in re.split(r",(?![^<]*>)", content))
        for item in items or [""]:
            choices = [FLOATS if part.strip() == "FLOATS" else (part.strip(),) for part in item.strip("<>").split(",")]
            for arguments in itertools.product(*choices):
                found[expression(kernel, arguments)] = arguments[0]
    return found


def expression(kernel: str, arguments: Sequence[str]) -> str:
    """The instance in C++."""
    return f"{kernel}<{', '.join(arguments)}>" if any(arguments) else kernel


def _spelling(argument: TemplateArgument) -> str:
    """A template argument in C++."""
    if isinstance(argument, (bool, numpy.bool_)):
        return "true" if argument else "false"
    if isinstance(argument, (int, numpy.integer)):
        return str(argument)
    return CPP_TYPES[numpy.dtype(argument).name]
