"""Compression of gradients that are on GPUs. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.memory import address
from fcaffe.net.blob import Array
from fcaffe.net.state import State
from fcaffe.parallel.compression.compression import Compression
from fcaffe.parallel.reductions.gpu.reduction import ByAnother


class OnDevice(ByAnother):
    """Copies each slice of the gradients into pinned memory, where a compression of the host sums it, and back.

    Residuals stay in the host's memory. The host waits for each slice. Slices are not cut into pieces, because what is
    sent depends on where a slice ends.
    """

    def __init__(self, compression: Compression, xp: Any) -> None:
        super().__init__(compression.comm, xp)
        self.another: Compression = compression
        self.name = compression.name
        self.compression = compression.name
        self.takes_momentum = compression.takes_momentum
        self._gradients: Array = None
        self._copied = xp.cuda.Event(block=True, disable_timing=True)

    def take_momentum(self, momentum: float, clip: float) -> None:
        self.another.take_momentum(momentum, clip)

    def state(self) -> State:
        return self.another.state()

    def restore_state(self, state: State) -> None:
        self.another.restore_state(state)

    def allocate(self, count: int) -> Array:
        """A buffer of zeros on the device for all gradients; replaces an earlier one."""
        self.stream.synchronize()
        self.another.allocate(count)
        self._pinned = np.frombuffer(self.xp.cuda.alloc_pinned_memory(4 * max(count, 1)), np.float32, count)
        self.another.use(self._pinned)
        self._gradients = super().allocate(count)
        return self._gradients

    def summary(self) -> str:
        return self.another.summary()

    def add_up(self, buffer: Array) -> None:
        start = (buffer.data.ptr - self._gradients.data.ptr) // 4
        pinned = self._pinned[start : start + buffer.size]
        runtime, stream = self.xp.cuda.runtime, self.stream.ptr
        host = address(pinned)
        runtime.memcpyAsync(host, buffer.data.ptr, pinned.nbytes, runtime.memcpyDeviceToHost, stream)
        self._copied.record(self.stream)
        self._copied.synchronize()
        self.another.sum(pinned)
        runtime.memcpyAsync(buffer.data.ptr, host, pinned.nbytes, runtime.memcpyHostToDevice, stream)
