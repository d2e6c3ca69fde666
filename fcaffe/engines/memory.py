"""Memory that vector units like."""

from __future__ import annotations

from typing import Any

import numpy

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def aligned_zeros(xp: Any, count: int) -> Any:
    """`count` float32 zeros that begin on a cache line. CuPy's memory always does."""
    if xp is not numpy:
        return xp.zeros(count, xp.float32)
    raw = numpy.zeros(4 * count + ALIGNMENT, numpy.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + 4 * count].view(numpy.float32)
