"""Dropout whose mask is drawn on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.cuda.operands import is_flat
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array


class Noise(PlainElementwise):
    """Dropout masks are 1 where a value is kept. The host draws noise of the kind 'caffe'."""

    kernels: Kernels
    counters: Array  # uint64 (2,): iteration, first sample; on the device, so that recorded passes read new values
    mask_dtype = "uint8"

    def dropout_forward(
        self, x: Array, y: Array, mask: Array, noise: Any, layer: str, ratio: float, scale: float
    ) -> None:
        if noise.noise == "counter":
            self._draw_mask(mask, noise, layer, ratio)
        else:
            mask[...] = self.from_numpy(noise.keep_mask(layer, x.shape, ratio))
        self.dropout_backward(x, mask, y, scale)

    def _draw_mask(self, mask: Array, noise: Any, layer: str, ratio: float) -> None:
        drawn = self.xp.empty(mask.shape, mask.dtype)  # the stream numbers its words in C order
        samples, size = mask.shape[0], math.prod(mask.shape[1:])
        numbers = *noise.noise_key(layer), noise.keep_limit(ratio), np.int64(samples), np.int64(size)
        blocks = blocks_for(samples * -(-size // 8))
        self.kernels.launch("noise", "draw_mask", (), blocks, THREADS, drawn, self.counters, *numbers)
        mask[...] = drawn

    def dropout_backward(self, dy: Array, mask: Array, dx: Array, scale: float) -> None:
        source, target = dy, dx
        if dy.dtype != dx.dtype or not is_flat(dy, mask, dx):
            source, target = (self.xp.empty_like(mask, dtype=dx.dtype) for _ in range(2))
            self.copy(dy, source)
        blocks, numbers = blocks_for(mask.size, per_thread=8), (np.float32(scale), np.int64(mask.size))
        self.kernels.launch("noise", "apply_mask", (dx.dtype,), blocks, THREADS, source, mask, target, *numbers)
        if target is not dx:
            self.copy(target, dx)
