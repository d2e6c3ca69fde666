"""Adds rows at indices in their order, by our own kernel. CuPy adds in any order, so last bits would differ.

CuPy also assigns in any order, so `scattered` selects the last value of equal indices first.
"""

from __future__ import annotations

import numpy as np

from fcaffe.engines.channels import is_channels_last
from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.engine import PlainRows
from fcaffe.engines.memory import Array

MANY = 1 << 16  # threads, which keep a GPU busy


class Rows(PlainRows):
    kernels: Kernels

    def add_rows(self, rows: Array, indices: Array, target: Array) -> None:
        if not rows.size:
            return
        if rows.dtype != np.float32 or target.dtype != np.float32:
            super().add_rows(rows, indices, target)
            return
        if rows.ndim == target.ndim > 3 and is_channels_last(rows) and is_channels_last(target):
            rows, target = self.xp.moveaxis(rows, 1, -1), self.xp.moveaxis(target, 1, -1)
        given, sums = self.xp.ascontiguousarray(rows), self.xp.ascontiguousarray(target)
        dense = self.xp.ascontiguousarray(indices)
        width = target.size // target.shape[0]
        remainders = max(1, min(target.shape[0], MANY // width))
        numbers = map(np.int64, (indices.size, width, remainders))
        blocks = blocks_for(width * remainders)
        self.kernels.launch("rows", "add_rows", (), blocks, THREADS, given, dense, sums, *numbers)
        if sums is not target:
            target[...] = sums

    def scattered(self, values: Array, indices: Array, count: int) -> Array:
        xp = self.xp
        last, order = xp.zeros(count, np.int32), xp.arange(1, values.size + 1, dtype=np.int32)
        xp.maximum.at(last, indices, order)
        target = xp.zeros(count, values.dtype)
        xp.add.at(target, indices, xp.where(last[indices] == order, values, 0))
        return target
