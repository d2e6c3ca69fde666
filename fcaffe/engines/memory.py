"""Memory that vector units like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def aligned_zeros(xp: Any, count: int, dtype: Any = numpy.float32) -> Any:
    """`count` zeros that begin on a cache line. CuPy's memory always does."""
    if xp is not numpy:
        return xp.zeros(count, dtype)
    size = count * numpy.dtype(dtype).itemsize
    raw = numpy.zeros(size + ALIGNMENT, numpy.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + size].view(dtype)


def logical_view(flat: Any, shape: tuple[int, ...], channels_last: bool) -> Any:
    """The values of a flat array as (N, C, spatial...), where they lie in this order or, channels last, C behind."""
    if not channels_last:
        return flat.reshape(shape)
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return flat.reshape(shape[0], *shape[2:], shape[1]).transpose(axes)


def obtainable_bytes(xp: Any) -> int | None:
    """The memory that this process could have in all, with what it has already; None if the system does not tell."""
    if xp is not numpy:
        return int(xp.cuda.Device().mem_info[0]) + int(xp.get_default_memory_pool().total_bytes())
    try:
        free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, StopIteration):
        return None
    return 1024 * int(free.split()[1]) + pages * os.sysconf("SC_PAGE_SIZE")
