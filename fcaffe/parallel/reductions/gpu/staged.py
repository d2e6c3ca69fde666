"""Sums of GPU buffers in the memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe.net.blob import Array
from fcaffe.net.layer import State
from fcaffe.parallel.reductions.gpu.reduction import DeviceReduction
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host, register, rows_of
from fcaffe.tree_order import Node, Tree


@register("staged")
class Staged(DeviceReduction):
    """Copies a buffer from the device into pinned memory, sums it there by another reduction, and copies it back.

    Works with every MPI, and with ranks that share a device. Messages are those of the other reduction.
    """

    wraps_another = True

    def __init__(self, comm: MPI.Intracomm, xp: Any, another: str | Reduction = "auto") -> None:
        self.name = f"{self.name}:{another}" if isinstance(another, str) else another.name
        super().__init__(comm, xp)
        self.another = create_on_host(another, comm) if isinstance(another, str) else another
        self.parts.append(self.another)
        self.counted = self.another.counted
        self.compression = self.another.compression
        self.applies_momentum = self.another.applies_momentum
        self._copied = xp.cuda.Event(block=True, disable_timing=True)  # leaves the core to others
        self._pinned = np.empty(0, np.float32)

    def add_up(self, buffer: Array) -> None:
        pinned = self.pinned_for(buffer)
        on_device, on_host = rows_of(buffer), rows_of(pinned)
        for values, copy in zip(on_device, on_host, strict=True):
            self._copy(values, copy, to_host=True)
        self._copied.record(self.stream)
        self._copied.synchronize()
        self.another.sum(pinned)
        self._copy(on_device[0], on_host[0], to_host=False)

    def pinned_for(self, buffer: Array) -> np.ndarray:
        """Page-locked memory for the values of a buffer: from and to any other, copies would not be asynchronous."""
        if self._pinned.size < buffer.size:
            self.stream.synchronize()  # the memory that is freed now may still be read
            self._pinned = self.allocate_pinned(buffer.size)
        return self._pinned[: buffer.size].reshape(buffer.shape)

    def allocate_pinned(self, count: int) -> np.ndarray:
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(4 * max(count, 1)), np.float32, count)

    def _copy(self, device: Array, host: np.ndarray, to_host: bool) -> None:
        runtime, device_pointer, host_pointer = self.xp.cuda.runtime, device.data.ptr, host.ctypes.data
        to, source = (host_pointer, device_pointer) if to_host else (device_pointer, host_pointer)
        way = runtime.memcpyDeviceToHost if to_host else runtime.memcpyHostToDevice
        runtime.memcpyAsync(to, source, host.nbytes, way, self.stream.ptr)

    def keep_to_tree(self, tree: Tree, nodes: Sequence[list[Node]]) -> None:
        self.another.keep_to_tree(tree, nodes)

    def set_momentum(self, momentum: float, clip: float) -> None:
        self.another.set_momentum(momentum, clip)

    def state(self) -> State:
        return self.another.state()

    def restore_state(self, state: State) -> None:
        self.another.restore_state(state)

    def summary(self) -> str:
        return self.another.summary()

    def close(self) -> None:
        self.stream.synchronize()
        super().close()
