"""Rows that are picked by indices, and their gradient."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.base import EngineBase

Array = Any


class PlainRows(EngineBase):
    def add_rows(self, rows: Array, indices: Array, target: Array) -> None:
        """target[indices] += rows. Rows with equal indices are added one after the other.

        rows (indices..., values...), indices int64, all of them in range, target (N, values...).
        """
        self.xp.add.at(target, indices, rows)

    def scattered(self, values: Array, indices: Array, count: int) -> Array:
        """(count,): the values (n,) at their indices (n,), the last one for equal indices; 0 elsewhere."""
        target = self.xp.zeros(count, values.dtype)
        target[indices] = values
        return target
