"""Arrays of N x C x spatial axes seen with the channels last, which is how they mostly lie in memory."""

from __future__ import annotations

from typing import Any

Array = Any


def channels_last(x: Array) -> Array:
    """The same array as (N, spatial..., C)."""
    return x.transpose(0, *range(2, x.ndim), 1)


def channel_sums(xp: Any, x: Array) -> Array:
    """(C,) float32: x (N, C, spatial...) summed over all other axes, as a product with ones, which the BLAS does fast
    and in blocks."""
    rows = channels_last(x).reshape(-1, x.shape[1]).astype(xp.float32, copy=False)
    return xp.ones(rows.shape[0], xp.float32) @ rows
