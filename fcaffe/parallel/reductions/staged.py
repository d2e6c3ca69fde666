"""Reductions of the host for buffers on GPUs. Not yet run on a GPU."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.device import DeviceReduction
from fcaffe.parallel.reductions.reduction import create_reduction, register

PIECE = 1 << 20  # floats that are copied at a time: one piece is summed while others travel to and from the device
IN_HOST_MEMORY = ("auto", "hierarchical", "shared")  # sum in memory that ranks share, where no device's can be


@register("staged")
class Staged(DeviceReduction):
    """Copies a buffer from the device into pinned memory, sums it there by another reduction, and copies it back.

    Works with every MPI, and with ranks that share a device. The host waits for each piece of the buffer. Messages are
    those of the other reduction, for each piece.
    """

    takes_another = True

    def __init__(self, comm: MPI.Intracomm, xp: Any, another: str = "auto") -> None:
        super().__init__(comm, xp)
        self.name = f"{self.name}:{another}"
        self.host = create_reduction(another, self.comm)
        self.counted = self.host.counted
        self._back = xp.cuda.Stream(non_blocking=True)  # so that both directions are under way at once
        self.ends_on = self._back if self.ranks > 1 else self.stream
        self._returned = xp.cuda.Event(disable_timing=True)
        self._pinned = np.empty(0, np.float32)
        self._copied: list[Any] = []  # an event for each piece

    @property
    def messages(self) -> int:
        return self.host.messages

    @property
    def bytes_sent(self) -> int:
        return self.host.bytes_sent

    def close(self) -> None:
        self._back.synchronize()
        self.host.close()
        super().close()

    def keep_to_tree(self) -> None:
        self.host.keep_to_tree()

    def add_up(self, buffer: Array) -> None:
        if self.ranks == 1:
            return
        pinned = self._pinned_memory(buffer.size)
        places = [slice(start, min(start + PIECE, buffer.size)) for start in range(0, buffer.size, PIECE)]
        self.stream.wait_event(self._returned)  # the last sum has left the pinned memory
        for place, copied in zip(places, self._copied, strict=False):
            self._copy(buffer[place], pinned[place], self.stream, to_host=True)
            copied.record(self.stream)
        for place, copied in zip(places, self._copied, strict=False):
            copied.synchronize()
            self.host.sum(pinned[place])
            self._copy(buffer[place], pinned[place], self._back, to_host=False)
        self._returned.record(self._back)

    def _pinned_memory(self, count: int) -> np.ndarray:
        """Page-locked memory: from and to any other, copies would not be asynchronous."""
        if self._pinned.size < count:
            self._back.synchronize()  # the memory that is given up now may still be read
            self._pinned = np.frombuffer(self.xp.cuda.alloc_pinned_memory(4 * count), np.float32, count)
            while len(self._copied) * PIECE < count:
                self._copied.append(self.xp.cuda.Event(block=True, disable_timing=True))  # leaves the core to others
        return self._pinned[:count]

    def _copy(self, device: Array, host: np.ndarray, stream: Any, to_host: bool) -> None:
        runtime = self.xp.cuda.runtime
        if to_host:
            runtime.memcpyAsync(host.ctypes.data, device.data.ptr, host.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        else:
            runtime.memcpyAsync(device.data.ptr, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream.ptr)


@register("direct")
class Direct(DeviceReduction):
    """Another reduction whose messages a CUDA-aware MPI reads and writes in the device's memory, where sums are added
    up too. With an MPI that is none it crashes."""

    takes_another = True

    def __init__(self, comm: MPI.Intracomm, xp: Any, another: str = "ring") -> None:
        super().__init__(comm, xp)
        self.name = f"{self.name}:{another}"
        if another.partition(":")[0] in IN_HOST_MEMORY:
            raise UsageError(f"reduction {self.name}: {another} needs memory of the host; use staged:{another}")
        self.inner = create_reduction(another, self.comm)
        self.inner.xp = xp
        self.inner.wire.before = self.stream.synchronize  # MPI knows of no streams
        self.counted = self.inner.counted

    @property
    def messages(self) -> int:
        return self.inner.messages

    @property
    def bytes_sent(self) -> int:
        return self.inner.bytes_sent

    def close(self) -> None:
        self.inner.close()
        super().close()

    def keep_to_tree(self) -> None:
        self.inner.keep_to_tree()

    def add_up(self, buffer: Array) -> None:
        with self.stream:
            self.stream.synchronize()
            self.inner.sum(buffer)


def cuda_aware() -> bool:
    """Whether this MPI takes buffers in a device's memory, as far as it says; some say what they were built for."""
    for variable in ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"):  # Cray's, MVAPICH's; 0 unless it is set
        if variable in os.environ:
            return os.environ[variable] == "1"
    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (AttributeError, OSError):
        return False
    return query() == 1
