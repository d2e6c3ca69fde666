"""Arrays on the stand-in for a device, in the layouts and types that operators meet."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import Kernels
from tests.engines.cuda.stand_in_cupy import cupy, raw_module

C_ORDER, CHANNELS_LAST, CHANNELS_OF_MORE = "C", "channels-last", "channels of more"

GUARD, GUARDS = 7, 512  # what stands behind arrays that tests make, and how many

Array = Any

_behind: list[Array] = []


def on_device(values: np.ndarray, dtype: Any = np.float32, layout: str = CHANNELS_LAST, offset: int = 0) -> Array:
    """The values there, `offset` values behind where memory begins."""
    shape = values.shape
    if layout == CHANNELS_OF_MORE:  # as Concat's bottoms lie in its top
        more = np.zeros((shape[0], shape[1] + 3, *shape[2:]), values.dtype)
        array = on_device(more, dtype)[:, 1 : 1 + shape[1]]
    else:
        whole = cupy.full(offset + values.size + GUARDS, GUARD, dtype)
        buffer = whole[offset : offset + values.size]
        _behind.append(whole[offset + values.size :])
        last_axes = (shape[0], *shape[2:], shape[1]) if values.ndim > 1 else shape
        is_last = layout == CHANNELS_LAST and values.ndim > 1
        array = cupy.moveaxis(buffer.reshape(last_axes), -1, 1) if is_last else buffer.reshape(shape)
    array[...] = cupy.asarray(values.astype(dtype))
    return array


def blank(shape: tuple[int, ...], dtype: Any = np.float32, layout: str = CHANNELS_LAST) -> Array:
    """For a result that is to replace all of what is there."""
    return on_device(np.full(shape, GUARD, np.float32), dtype, layout)


def to_host(array: Array, dtype: Any = np.float64) -> np.ndarray:
    return array.get().astype(dtype)


def random(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Normally distributed values, in float32, that `dtype` can hold."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype).astype(np.float32)


def launched() -> list[str]:
    """The kernels launched since the last time, as "name<types>"."""
    names = list(raw_module.launches)
    raw_module.launches.clear()
    return names


def assert_nothing_else_written() -> None:
    """Behind the arrays made since the last time."""
    assert all((each.get() == np.array(GUARD, each.dtype)).all() for each in _behind)
    _behind.clear()


class OnStandIn:
    """Base of operators on the stand-in: what they want of an engine."""

    xp = cupy

    def __init__(self) -> None:
        self.kernels = Kernels(cupy)
