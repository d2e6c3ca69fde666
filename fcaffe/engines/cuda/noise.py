"""Dropout whose mask is drawn on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.cuda.operands import is_channels_last
from fcaffe.engines.noise import PlainNoise

Array = Any


class Noise(PlainNoise):
    """Dropout masks are 1 where a value is kept. The host draws noise of the kind 'caffe'."""

    kernels: Kernels
    counters: Array  # uint64 (2,): iteration, first sample; on the device, so that recorded passes read new values
    mask_dtype = "uint8"

    def dropout_forward(
        self, x: Array, y: Array, mask: Array, noise: Any, layer: str, ratio: float, scale: float
    ) -> None:
        if noise.noise != "counter":
            mask[...] = self.from_numpy(noise.keep_mask(layer, x.shape, ratio))
            self.dropout_backward(x, mask, y, scale)
            return
        drawn = self.xp.ascontiguousarray(mask)  # the stream numbers its words in C order
        source, target = self._in_mask_order(x, drawn, y.dtype), self._output_in_mask_order(y, drawn)
        samples, size = x.shape[0], math.prod(x.shape[1:])
        numbers = *noise.noise_key(layer), noise.keep_limit(ratio), np.float32(scale), np.int64(samples), np.int64(size)
        args = source, target, drawn, self.counters, *numbers
        blocks = blocks_for(samples * -(-size // 8))
        self.kernels.launch("noise", "dropout_forward", (y.dtype,), blocks, THREADS, *args)
        if drawn is not mask:
            mask[...] = drawn
        if target is not y:
            self.copy(target, y)

    def dropout_backward(self, dy: Array, mask: Array, dx: Array, scale: float) -> None:
        source, target = self._in_mask_order(dy, mask, dx.dtype), self._output_in_mask_order(dx, mask)
        args = source, mask, target, np.float32(scale), np.int64(mask.size)
        blocks = blocks_for(mask.size, per_thread=8)
        self.kernels.launch("noise", "apply_mask", (dx.dtype,), blocks, THREADS, *args)
        if target is not dx:
            self.copy(target, dx)

    def _in_mask_order(self, array: Array, mask: Array, dtype: Any) -> Array:
        """The array, or a copy of it, in this dtype and in the memory order of the mask."""
        if array.dtype == dtype and _same_order(array, mask):
            return array
        copied = self.xp.empty_like(mask, dtype=dtype)
        self.copy(array, copied)
        return copied

    def _output_in_mask_order(self, array: Array, mask: Array) -> Array:
        """The array, or a temporary one in the memory order of the mask, which the caller copies back."""
        return array if _same_order(array, mask) else self.xp.empty_like(mask, dtype=array.dtype)


def _same_order(array: Array, mask: Array) -> bool:
    return bool(array.flags.c_contiguous) if mask.flags.c_contiguous else is_channels_last(array)
