"""Gradients of 16 bits, as cuDNN gives them, on their way into the flat float32 buffer: by one kernel for all."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, Kernels
from fcaffe.engines.cuda.operands import Operands, is_channels_last, lies_in

Array = Any

CHUNK = 4096  # values that a block of threads widens


class Gradients(Operands):
    """A pass over a net has a gradient for each convolution; to widen each by itself would be as many small kernels."""

    kernels: Kernels

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: dict[int, Array] = {}
        self._kept: list[tuple[weakref.ref[Any], Any]] = []

    def adopt_parameters(self, data: Array, diff: Array) -> None:
        super().adopt_parameters(data, diff)
        # Graphs of a solver's passes hold addresses only: what is behind them lives as long as its flat buffers.
        self._kept = [(owner, things) for owner, things in self._kept if owner() is not None]
        self._narrow: dict[int, Array] = {}  # by the address of the wide one, memory that stays
        self._waiting.clear()
        self._tables: dict[tuple[int, ...], tuple[Array, Array, Array]] = {}  # of those that wait together
        self._kept.append((weakref.ref(data), (self.half_parameters, self._narrow, self._tables)))

    def narrow_gradient(self, wide: Array) -> Array | None:
        """Where to write a gradient of 16 bits that is to be put off; None if this one is not to be."""
        if self.half_dtype is None or not lies_in(wide, self._flat_gradients) or not is_channels_last(wide):
            return None
        address = wide.data.ptr
        if address not in self._narrow:
            self._narrow[address] = self.empty_channels_last(wide.shape, self.half_dtype)
        return self._narrow[address]

    def put_off(self, wide: Array) -> None:
        """Its `narrow_gradient` has been written, and `settle_gradients` is to write it."""
        self._waiting[wide.data.ptr] = wide

    def settle_gradients(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        key = tuple(waiting)
        if key not in self._tables:
            if self.stream.is_capturing():  # a table cannot be brought to the device now
                for address, wide in waiting.items():
                    self.copy(self._narrow[address], wide)
                return
            self._tables[key] = self._table(waiting)
        table = self._tables[key]
        self.kernels.launch("update", "widen_gradients", (self.half_dtype,), len(table[0]), THREADS, *table)

    def _table(self, waiting: dict[int, Array]) -> tuple[Array, Array, Array]:
        """Of each chunk where it is, where it goes and how long it is."""
        chunks = [
            (self._narrow[address].data.ptr + 2 * first, address + 4 * first, min(CHUNK, wide.size - first))
            for address, wide in waiting.items()
            for first in range(0, wide.size, CHUNK)
        ]
        sources, targets, lengths = zip(*chunks, strict=True)
        on_device = self.xp.asarray
        return (
            on_device(np.array(sources, np.uint64)),
            on_device(np.array(targets, np.uint64)),
            on_device(np.array(lengths, np.int32)),
        )
