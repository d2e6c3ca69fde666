"""Arrays on the stand-in for a device, in the orders and types that operators meet."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import cupy, raw_module

C_ORDER, CHANNELS_LAST = "C", "channels-last"

Array = Any


def on_device(values: np.ndarray, dtype: Any = np.float32, layout: str = CHANNELS_LAST) -> Array:
    """The values there."""
    if layout == CHANNELS_LAST and values.ndim > 1:
        array = cupy.moveaxis(cupy.empty((values.shape[0], *values.shape[2:], values.shape[1]), dtype), -1, 1)
    else:
        array = cupy.empty(values.shape, dtype)
    array[...] = cupy.asarray(values.astype(dtype))
    return array


def blank(shape: tuple[int, ...], dtype: Any = np.float32, layout: str = CHANNELS_LAST) -> Array:
    """For a result that is to replace all of what is there."""
    return on_device(np.full(shape, 7, np.float32), dtype, layout)


def to_host(array: Array) -> np.ndarray:
    return array.get().astype(np.float64)


def random(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Normally distributed values, in float32, that `dtype` can hold."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype).astype(np.float32)


def launched() -> list[str]:
    """The kernels launched since the last time, as "name<types>"."""
    names = list(raw_module.launches)
    raw_module.launches.clear()
    return names
