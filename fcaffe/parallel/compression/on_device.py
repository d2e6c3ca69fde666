"""Compression of gradients that are on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.net.blob import Array
from fcaffe.parallel.compression.compression import Compression
from fcaffe.parallel.reductions.gpu.staged import Staged
from fcaffe.parallel.reductions.reduction import Reduction


class OnDevice(Staged):
    """Copies each slice of the gradients into pinned memory, where a compression of the host sums it, and back.

    Residuals stay in the host's memory. Slices are not cut into pieces, because what is sent depends on where a slice
    ends.
    """

    def __init__(self, compression: Compression, xp: Any) -> None:
        self._compression = compression
        super().__init__(compression.comm, xp)
        self.name = compression.name
        self._gradients: Array = None

    def create_another(self) -> Reduction:
        return self._compression

    def allocate(self, count: int) -> Array:
        """A buffer of zeros on the device for all gradients; replaces an earlier one."""
        self._back.synchronize()
        self._compression.allocate(count)
        self._pinned = self.allocate_pinned(count)
        self._compression.use(self._pinned)
        self._gradients = super().allocate(count)
        return self._gradients

    def pieces(self, count: int) -> list[slice]:
        return [slice(0, count)]

    def pinned_for(self, buffer: Array) -> np.ndarray:
        start = (buffer.data.ptr - self._gradients.data.ptr) // 4
        return self._pinned[start : start + buffer.size]
