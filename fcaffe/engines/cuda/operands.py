"""Operands of products on the GPU: factors in the type and layout of NVIDIA's libraries."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.elementwise import PlainElementwise

Array = Any


class Operands(PlainElementwise):
    """Base of operators that multiply. Factors are converted to `half_dtype`, unless that is None."""

    math: str

    def factor(self, array: Array) -> Array:
        """The array as a factor of a product: itself, or a copy of type `half_dtype`."""
        if self.half_dtype is None or array.dtype == self.half_dtype:
            return array
        narrow = self.xp.empty_like(array, dtype=self.half_dtype)
        self.copy(array, narrow)
        return narrow

    def channels_last(self, array: Array) -> Array:
        """The array, or a copy of it, (N, C, spatial...) in channels-last memory."""
        if is_channels_last(array):
            return array
        copied = self.empty_channels_last(array.shape, array.dtype)
        self.copy(array, copied)
        return copied

    def empty_channels_last(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.moveaxis(self.xp.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of (N, C, spatial...), in elements."""
    strides, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def is_channels_last(array: Array) -> bool:
    """Whether the array is dense and channels-last. Strides along axes of length 1 do not count."""
    size = array.itemsize
    wanted = channels_last_strides(array.shape)
    return all(n == 1 or s == size * w for n, s, w in zip(array.shape, array.strides, wanted, strict=True))
