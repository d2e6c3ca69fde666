"""Channels-last views of N x C x spatial arrays, which mostly lie so in memory, and sums of each channel's values.

A float32 sum that adds one value after the other loses a digit with every hundredfold of values. Here float32 sums have
some dozen values each, and float64 adds the sums. The order of additions is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fcaffe.engines.memory import Array

ForEach = Callable[[Callable[..., None], Sequence[tuple[Any, ...]]], None]  # as Engine.for_each

FEWEST, MOST = 16, 64  # values that are added in float32
LANES = 16  # of them in a vector, each of which adds its own
PIECE = 1 << 18  # values per step, which stay in a core's cache between two sums
FEW = 1 << 14  # values below which all sums are in float64
FAR = 16  # mean^2 / variance above which mean squares have too few digits


def channels_last(x: Array) -> Array:
    """The same array as (N, spatial..., C)."""
    return x.transpose(0, *range(2, x.ndim), 1)


def is_channels_last(x: Array) -> bool:
    return bool(channels_last(x).flags.c_contiguous)


def sum_channels(x: Array) -> Array:
    """(C,) float32: a NumPy array (N, C, spatial...), of float32 or bfloat16, summed over all other axes."""
    if x.size <= FEW:
        return widened(x).sum(axis=(0, *range(2, x.ndim)), dtype=np.float64).astype(np.float32)
    rows = channels_last(x).reshape(-1, x.shape[1])
    if rows.dtype != np.float32 or len(rows) < MOST:
        return channel_products(None, x)[0].astype(np.float32)
    count = len(rows) // MOST * MOST
    sums = rows[:count].reshape(MOST, -1).sum(axis=0)  # each of distant rows
    total = sums.reshape(-1, x.shape[1]).sum(axis=0, dtype=np.float64)
    return (total + rows[count:].sum(axis=0, dtype=np.float64)).astype(np.float32)


def row_sums(a: Array, b: Array | None) -> Array:
    """(N, values) in float64: NumPy arrays (N, rows, values), or products of two, summed over the rows."""
    total = np.zeros((a.shape[0], a.shape[2]))
    step = MOST if a.shape[2] > 1 else LANES * MOST
    for start in range(0, a.shape[1], step):
        part = a[:, start : start + step]
        total += part.sum(axis=1) if b is None else np.einsum("nrv,nrv->nv", part, b[:, start : start + step])
    return total


def one_by_one(work: Callable[..., None], items: Sequence[tuple[Any, ...]]) -> None:
    """Engine.for_each without an engine."""
    for item in items:
        work(*item)


def channel_moments(x: Array, for_each: ForEach = one_by_one) -> tuple[Array, Array]:
    """Mean and biased variance of each channel of a NumPy array (N, C, spatial...), each (C,) in float64."""
    values = max(1, x.size // x.shape[1])
    mean, squares = channel_products(x, x, None, for_each) / values
    variance = squares - mean * mean
    if not np.all(is_near(mean, variance)):  # square distances from the mean instead
        shift = mean.astype(np.float32)
        distance, squares = channel_products(x, x, shift, for_each) / values
        mean, variance = shift + distance, squares - distance * distance
    return mean, np.maximum(variance, 0)


def is_near(mean: Array, variance: Array) -> Array:
    """Where a mean is near enough to 0 for sums of products without a shift."""
    return mean * mean <= FAR * variance


def channel_products(a: Array | None, b: Array, shift: Array | None = None, for_each: ForEach = one_by_one) -> Array:
    """For each channel the sums of b and of a * b over all other axes, (2, C) in float64.

    a and b are NumPy arrays of one shape (N, C, spatial...), of float32 or bfloat16. Without `a` the second sum is
    undefined. A `shift` (C,) is subtracted from a, and from b if that is the same array.
    """
    channels = b.shape[1]
    if not b.size:
        return np.zeros((2, channels))
    dtype = np.float64 if b.size <= FEW else np.float32
    left, right = None if a is None else _rows(a, dtype), _rows(b, dtype)
    length = max(FEWEST, min(MOST, len(right) >> 10))
    rows_at_once = max(1, PIECE // (length * channels))  # rows that count as one, so that a vector holds many sums
    step = length * rows_at_once
    whole = len(right) - len(right) % rows_at_once
    pieces = [(start, min(start + step, whole), rows_at_once) for start in range(0, whole, step)]
    pieces += [(whole, len(right), 1)] if whole < len(right) else []
    found = np.empty((len(pieces), 2, channels))
    wide = None if shift is None else np.tile(shift, rows_at_once)

    def add_up(number: int, start: int, end: int, rows_at_once: int) -> None:
        columns = rows_at_once * channels
        second = widened(right[start:end].reshape(-1, columns))
        first = second if a is b else None if left is None else widened(left[start:end].reshape(-1, columns))
        if wide is not None:
            first = first - wide[:columns]
            second = first if b is a else second
        sums = np.zeros((2, columns), dtype)
        second.sum(axis=0, out=sums[0])
        if first is not None:
            np.einsum("rc,rc->c", first, second, out=sums[1])
        found[number] = sums.reshape(2, rows_at_once, channels).sum(axis=1, dtype=np.float64)

    for_each(add_up, [(number, *piece) for number, piece in enumerate(pieces)])
    return found.sum(axis=0)


def _rows(x: Array, dtype: Any) -> Array:
    """(values of a channel, C); bfloat16 values that are to become float32 stay as they are."""
    rows = channels_last(x).reshape(-1, x.shape[1])
    return rows if rows.dtype.kind == "V" and dtype == np.float32 else widened(rows).astype(dtype, copy=False)


def widened(x: Array) -> Array:
    """bfloat16 values, which NumPy does not know, as float32; other arrays as they are."""
    if x.dtype.kind != "V":
        return x
    wide = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32)
    return np.left_shift(wide, 16, out=wide).view(np.float32).reshape(x.shape)


def narrowed(x: Array) -> Array:
    """float32 values rounded to the nearest bfloat16, as opaque bytes."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(x == x, upper, bits >> 16 | 0x40).astype(np.uint16).view("V2").reshape(x.shape)
