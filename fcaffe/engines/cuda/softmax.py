"""Softmax by our own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, blocks_for
from fcaffe.engines.cuda.packs import Packs, common_type
from fcaffe.engines.normalization import PlainNormalization

Array = Any


class Softmax(Packs, PlainNormalization):
    """Fast along axis 1, of which arrays that are not channels-last and of one type are copied, and along the last."""

    def softmax_forward(self, x: Array, y: Array, axis: int) -> None:
        if axis == 1:
            x, out = self.operand(x, common_type(x, y)), self.result(y, common_type(x, y))
        elif _are_rows(axis, x, y):
            out = y
        else:
            super().softmax_forward(x, y, axis)
            return
        self._softmax("forward", axis, x, out)
        self.deliver(out, y)

    def softmax_backward(self, y: Array, dy: Array, dx: Array, axis: int) -> None:
        if axis == 1:
            dtype = common_type(y, dy, dx)
            y, dy, out = self.operand(y, dtype), self.operand(dy, dtype), self.result(dx, dtype)
        elif _are_rows(axis, y, dy, dx):
            out = dx
        else:
            super().softmax_backward(y, dy, dx, axis)
            return
        self._softmax("backward", axis, y, dy, out)
        self.deliver(out, dx)

    def _softmax(self, direction: str, axis: int, *arrays: Array) -> None:
        """The arrays are rows of shape[axis] in memory."""
        channels = arrays[0].shape[axis]
        rows = arrays[0].size // max(1, channels)
        sizes = np.int64(rows), np.int32(channels)
        blocks = blocks_for(32 * rows)
        self.kernels.launch("softmax", f"softmax_{direction}", (arrays[0].dtype,), blocks, THREADS, *arrays, *sizes)


def _are_rows(axis: int, *arrays: Array) -> bool:
    """Whether values along the axis, the last one, are neighbours in memory."""
    one_type = all(array.dtype == arrays[0].dtype for array in arrays)
    return one_type and axis == arrays[0].ndim - 1 and all(array.flags.c_contiguous for array in arrays)
