"""Operands of products on the GPU: factors in the type and layout of NVIDIA's libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

Array = Any


class Operands:
    """Base of operators that multiply. `half_dtype` is the type of factors, or None: as they are."""

    xp: Any
    stream: Any
    math: str
    half_dtype: np.dtype[Any] | None = None

    _flat_parameters: Array = None
    _flat_gradients: Array = None
    half_parameters: Array | None = None

    if TYPE_CHECKING:  # of PlainElementwise

        def copy(self, x: Array, y: Array) -> None: ...
        def add_bias(self, y: Array, bias: Array, relu: bool) -> None: ...
        def bias_backward(self, dy: Array, dbias: Array, add: bool) -> None: ...
        def relu_forward(self, x: Array, y: Array, slope: float) -> None: ...

    def adopt_parameters(self, data: Array, diff: Array) -> None:
        """`data` is the flat float32 buffer of a net's parameters, `diff` that of their gradients. With 16-bit factors,
        `half_parameters` is a copy of `data` that is written together with it, by the update, or anew by
        `refresh_parameters`."""
        self._flat_parameters, self._flat_gradients = data, diff
        self.half_parameters = None
        if self.half_dtype is not None:
            self.half_parameters = self.xp.empty(data.shape, self.half_dtype)
            self.refresh_parameters()

    def refresh_parameters(self) -> None:
        """To be called after something other than the update has written the parameters."""
        if self.half_parameters is not None:
            self.copy(self._flat_parameters, self.half_parameters)

    def factor(self, array: Array) -> Array:
        """The array as a factor, in 16 bits if that is the type of factors."""
        if self.half_dtype is None or array.dtype == self.half_dtype:
            return array
        twin = self._twin(array)
        if twin is None:
            twin = self.xp.empty_like(array, dtype=self.half_dtype)
            self.copy(array, twin)
        return twin

    def _twin(self, array: Array) -> Array | None:
        """The same slice of the 16-bit copy of the parameters, if the array lies in there."""
        if self.half_parameters is None or not lies_in(array, self._flat_parameters):
            return None
        offset = array.data.ptr - self._flat_parameters.data.ptr
        half, ratio = self.half_parameters, array.itemsize // self.half_parameters.itemsize
        memory = half.data + offset // ratio
        strides = tuple(stride // ratio for stride in array.strides)
        return self.xp.ndarray(array.shape, half.dtype, memory, strides)

    def channels_last(self, array: Array) -> Array:
        """The array, or a copy of it, (N, C, spatial...) in channels-last memory."""
        if is_channels_last(array):
            return array
        copied = self.empty_channels_last(array.shape, array.dtype)
        self.copy(array, copied)
        return copied

    def empty_channels_last(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.moveaxis(self.xp.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)


def lies_in(array: Array, flat: Array) -> bool:
    return flat is not None and 0 <= array.data.ptr - flat.data.ptr < flat.nbytes


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of (N, C, spatial...), in elements."""
    strides, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def is_aligned(array: Array) -> bool:
    """Whether it begins where an access of 16 bytes may, as cuDNN takes for granted."""
    return not array.data.ptr % 16


def is_channels_last(array: Array) -> bool:
    """Whether memory holds nothing but the array, channels-last. Strides along axes of length 1 do not count."""
    size = array.itemsize
    wanted = channels_last_strides(array.shape)
    return all(n == 1 or s == size * w for n, s, w in zip(array.shape, array.strides, wanted, strict=True))
