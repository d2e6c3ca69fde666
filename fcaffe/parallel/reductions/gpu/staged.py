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

PIECE = 1 << 20  # floats that are copied at a time: one piece is summed while others travel to and from the device


@register("staged")
class Staged(DeviceReduction):
    """Copies a buffer from the device into pinned memory, sums it there by another reduction, and copies it back.

    Works with every MPI, and with ranks that share a device. The host waits for each piece of the buffer. Messages are
    those of the other reduction, for each piece.
    """

    wraps_another = True

    def __init__(self, comm: MPI.Intracomm, xp: Any, another: str | Reduction = "auto") -> None:
        self.name = f"{self.name}:{another}" if isinstance(another, str) else another.name
        super().__init__(comm, xp)
        self.another = create_on_host(another, comm) if isinstance(another, str) else another
        self.counted = self.another.counted
        self.compression = self.another.compression
        self.applies_momentum = self.another.applies_momentum
        self._back = xp.cuda.Stream(non_blocking=True)  # so that copies go both ways at once
        self.ends_on = self._back
        self._returned = xp.cuda.Event(disable_timing=True)
        self._pinned = np.empty(0, np.float32)
        self._copied: list[Any] = []  # an event for each piece

    def add_up(self, buffer: Array) -> None:
        pinned = self.pinned_for(buffer)
        pieces = self.pieces(buffer.shape[-1])
        on_device, on_host = rows_of(buffer), rows_of(pinned)
        while len(self._copied) < len(pieces):
            self._copied.append(self.xp.cuda.Event(block=True, disable_timing=True))  # leaves the core to others
        self.stream.wait_event(self._returned)  # the last sum has left the pinned memory
        for piece, copied in zip(pieces, self._copied, strict=False):
            for values, copy in zip(on_device, on_host, strict=True):
                self._copy(values[piece], copy[piece], self.stream, to_host=True)
            copied.record(self.stream)
        for piece, copied in zip(pieces, self._copied, strict=False):
            copied.synchronize()
            self.another.sum(pinned[..., piece])
            self._copy(on_device[0, piece], on_host[0, piece], self._back, to_host=False)
        self._returned.record(self._back)

    def pieces(self, count: int) -> list[slice]:
        """The slices of a buffer of `count` floats that are summed one after the other."""
        return [slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE)]

    def pinned_for(self, buffer: Array) -> np.ndarray:
        """Page-locked memory for the values of a buffer: from and to any other, copies would not be asynchronous."""
        if self._pinned.size < buffer.size:
            self._back.synchronize()  # the memory that is freed now may still be read
            self._pinned = self.allocate_pinned(buffer.size)
        return self._pinned[: buffer.size].reshape(buffer.shape)

    def allocate_pinned(self, count: int) -> np.ndarray:
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(4 * max(count, 1)), np.float32, count)

    def _copy(self, device: Array, host: np.ndarray, stream: Any, to_host: bool) -> None:
        runtime = self.xp.cuda.runtime
        if to_host:
            runtime.memcpyAsync(host.ctypes.data, device.data.ptr, host.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        else:
            runtime.memcpyAsync(device.data.ptr, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    @property
    def messages(self) -> int:
        return self.another.messages

    @property
    def bytes_sent(self) -> int:
        return self.another.bytes_sent

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
        self.ends_on.synchronize()
        self.another.close()
        super().close()
