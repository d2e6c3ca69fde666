"""Arrays of N x C x spatial axes seen with the channels last, which is how they mostly lie in memory."""

from __future__ import annotations

from typing import Any

Array = Any


def channels_last(x: Array) -> Array:
    """The same array as (N, spatial..., C)."""
    return x.transpose(0, *range(2, x.ndim), 1)


def channel_sums(xp: Any, x: Array) -> Array:
    """(C,): x (N, C, spatial...) summed over all other axes, as a product with ones: fast, and blocked by the BLAS."""
    rows = channels_last(x).reshape(-1, x.shape[1])
    return xp.ones(rows.shape[0], x.dtype) @ rows
