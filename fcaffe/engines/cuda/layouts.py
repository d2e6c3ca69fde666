"""Memory layouts of arrays, and the axes for copies between two layouts. Strides count values, not bytes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

Array = Any
Numbers = tuple[int, ...]


class Axis(NamedTuple):
    size: int
    x: int  # strides
    y: int


def alike(*arrays: Array) -> bool:
    """Whether these have one shape, dtype and dense memory order, so that one loop over memory can compute all."""
    first = arrays[0]
    return all(a.shape == first.shape and a.dtype == first.dtype for a in arrays) and all(
        is_flat(first.shape, strides(first), strides(array)) for array in arrays
    )


def strides(array: Array) -> Numbers:
    size = array.dtype.itemsize
    return tuple([stride // size for stride in array.strides])


@functools.lru_cache(4096)
def is_flat(shape: Numbers, x: Numbers, y: Numbers) -> bool:
    """Whether arrays of these strides are dense and have the same memory order."""
    axes = common_axes(shape, x, y)
    return not axes or (len(axes) == 1 and axes[0].x == axes[0].y == 1)


@functools.lru_cache(4096)
def common_axes(shape: Numbers, x: Numbers, y: Numbers) -> tuple[Axis, ...]:
    """The axes of two arrays of this shape and these strides, merged as far as both allow. Axes of size 1 are dropped.
    The axis with the widest stride of y comes first."""
    axes: list[Axis] = []
    for axis in sorted((Axis(*each) for each in zip(shape, x, y, strict=True)), key=lambda axis: (-axis.y, -axis.x)):
        if axis.size == 1:
            continue
        if axes and axes[-1].x == axis.x * axis.size and axes[-1].y == axis.y * axis.size:
            axes[-1] = Axis(axes[-1].size * axis.size, axis.x, axis.y)
        else:
            axes.append(axis)
    return tuple(axes)


def rows_of_channels(array: Array) -> tuple[int, int] | None:
    """(rows, channels) of a non-empty array (N, C, ...) whose memory is a dense matrix with channels as columns; else
    None."""
    return _rows_of_channels(array.shape, strides(array)) if array.ndim > 1 and array.size else None


@functools.lru_cache(4096)
def _rows_of_channels(shape: Numbers, lying: Numbers) -> tuple[int, int] | None:
    width = 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):  # from the innermost axis on
        if shape[axis] != 1 and lying[axis] != width:
            return None
        width *= shape[axis]
    return width // shape[1], shape[1]
