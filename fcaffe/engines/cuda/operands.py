"""Operands of the GPU engine's kernels and libraries: arrays in the type and the memory order that they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.channels import is_channels_last
from fcaffe.engines.cuda.kernels import Kernels
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.limits import Limit
from fcaffe.engines.memory import Array

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)
BYTES = 16  # of an access to memory, and the alignment that cuDNN requires
NULL = np.uint64(0)  # in the position of an optional array

LIMITS = {  # of cuDNN, of cuBLAS as it is called here, and of our kernels
    "convolution": Limit(3, 5),  # one to three spatial axes; a plan may be missing still
    "matmul": Limit(2, 2, lambda arrays: all(array.ndim == 2 and array.flags.c_contiguous for array in arrays)),
    "pooling": Limit(4, 4),
}


class Operands(PlainElementwise):
    """Base of operators on channels-last arrays (N, C, spatial...) of one type. Other arrays are copied."""

    kernels: Kernels

    def operand(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """The array, or a copy of it, channels-last, of this type, and aligned."""
        if _is_suitable(array, dtype):
            return array
        copied = self.empty_channels_last(array.shape, dtype)
        self.copy(array, copied)
        return copied

    def result(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """The array or a temporary one that a kernel can write. `deliver` copies it back."""
        return array if _is_suitable(array, dtype) else self.empty_channels_last(array.shape, dtype)

    def deliver(self, result: Array, array: Array) -> None:
        if result is not array:
            self.copy(result, array)

    def empty_channels_last(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.moveaxis(self.xp.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)


def common_type(*arrays: Array) -> np.dtype[Any]:
    """The arrays' type, or float32 if they do not have one in common."""
    first = arrays[0].dtype
    return first if all(array.dtype == first for array in arrays) else FLOAT


def pack_of(channels: int, *arrays: Array) -> int:
    """The channels that a thread computes at a time: as many as fill an access of the first array, or 1 if that does
    not divide `channels` or an array is not aligned."""
    pack = BYTES // arrays[0].itemsize
    return pack if channels % pack == 0 and not any(array.data.ptr % BYTES for array in arrays) else 1


def _is_suitable(array: Array, dtype: np.dtype[Any]) -> bool:
    return array.dtype == dtype and is_channels_last(array) and not array.data.ptr % BYTES
