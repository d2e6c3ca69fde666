"""Operands of channels-last kernels: arrays of one type, read in packs of neighbouring channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import Kernels
from fcaffe.engines.cuda.operands import Operands, is_channels_last

Array = Any

FLOAT = np.dtype(np.float32)
BYTES = 16  # of an access to memory
NULL = np.uint64(0)  # in the position of an optional array


class Packs(Operands):
    """Base of operators with such kernels. Arrays of another type or layout are copied."""

    kernels: Kernels

    def operand(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """The array, or a copy of it, (N, C, spatial...) in channels-last memory and of this type."""
        if array.dtype == dtype:
            return self.channels_last(array)
        copied = self.empty_channels_last(array.shape, dtype)
        self.copy(array, copied)
        return copied

    def result(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """The array or a temporary one that a kernel can write. `deliver` copies it back."""
        if array.dtype == dtype and is_channels_last(array):
            return array
        return self.empty_channels_last(array.shape, dtype)

    def deliver(self, result: Array, array: Array) -> None:
        if result is not array:
            self.copy(result, array)


def common_type(*arrays: Array) -> np.dtype[Any]:
    """The arrays' type, or float32 if they do not have one in common."""
    first = arrays[0].dtype
    return first if all(array.dtype == first for array in arrays) else FLOAT


def pack_of(channels: int, *arrays: Array) -> int:
    """The channels that a thread computes at a time: as many as fill an access of the first array, or 1 if that does
    not divide `channels` or an array is not aligned."""
    pack = BYTES // arrays[0].itemsize
    return pack if channels % pack == 0 and not any(array.data.ptr % BYTES for array in arrays) else 1
