"""Asynchronous copies between the host and the GPU."""

from __future__ import annotations

import math
from collections import deque
from functools import cached_property
from typing import Any

import numpy as np

from fcaffe.engines.base import DONE, Pending
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array, address


class Transfers(PlainElementwise):
    """Copies large arrays on a stream of their own, and small ones on the work stream.

    Any thread may call `host_array`, and one at a time the rest. No graph records a copy.
    """

    device: Any
    stream: Any

    def host_array(self, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """An uninitialised array in page-locked memory, which the GPU accesses without the host.

        The memory is reused once the array is collected. Keep a reference while it is being copied.
        """
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        self.device.use()  # each thread has one, at first number 0
        memory = self.xp.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def upload(self, host: np.ndarray, target: Array) -> Pending:
        """target[...] = host, after all work so far. `host` may be written again when the result is done.

        A dense array of `host_array` is copied while earlier work still runs. Any other is first copied into such an
        array, so it may be written again at once.

        Args:
            host: A float32 array with any strides.
            target: An array of the same shape and any dtype.
        """
        if host.shape != target.shape:
            raise ValueError(f"an array of shape {host.shape} cannot be uploaded into one of {target.shape}")
        if not host.size:
            return DONE
        self.make_current()
        host = np.asarray(host, np.float32)
        axes = sorted(range(host.ndim), key=lambda axis: -host.strides[axis])
        dense = host.transpose(axes)  # as it lies in memory
        source, is_direct = dense, dense.flags.c_contiguous and self._is_pinned(host)
        if not is_direct:
            source = self.host_array(dense.shape)
            source[...] = dense
        # Memory of this pool has no other use, so that the copy need not wait for earlier work.
        with self.xp.cuda.using_allocator(self._landing_memory.malloc):
            landing = self.xp.empty(dense.shape, np.float32)
        copying = self._begin_copy(landing.data.ptr, source, self.xp.cuda.runtime.memcpyHostToDevice, self._copy_stream)
        self.stream.wait_event(copying.event)
        self.copy(landing.transpose(np.argsort(axes).tolist()), target)
        self._hold(self.stream, landing)
        return copying if is_direct else DONE

    def read_later(self, array: Array) -> Pending:
        """The values of a small array after all work so far: a float if it has one value, else a NumPy array."""
        self.make_current()
        array = array if array.flags.c_contiguous else array.copy(order="C")
        memory = self.host_array(array.shape, array.dtype)
        kind = self.xp.cuda.runtime.memcpyDeviceToHost
        return Copying(self._begin_copy(array.data.ptr, memory, kind, self.stream).event, memory)

    def write_small(self, target: Array, values: np.ndarray) -> None:
        """target[...] = values, after all work so far; a small contiguous target. `values` may change at once."""
        memory = self.host_array(target.shape, target.dtype)
        memory[...] = values
        self._begin_copy(target.data.ptr, memory, self.xp.cuda.runtime.memcpyHostToDevice, self.stream)

    def _begin_copy(self, device: int, host: np.ndarray, kind: int, stream: Any) -> Copying:
        """Begin a copy between an address on the device and a pinned array."""
        runtime, there = self.xp.cuda.runtime, address(host)
        target, source = (device, there) if kind == runtime.memcpyHostToDevice else (there, device)
        runtime.memcpyAsync(target, source, host.nbytes, kind, stream.ptr)
        return self._hold(stream, host)

    def _hold(self, stream: Any, memory: Any) -> Copying:
        """Keep this memory alive until all work of the stream so far is done, even if the net is deleted."""
        work = Copying(self.xp.cuda.Event(block=True, disable_timing=True))  # for which the host waits asleep
        work.event.record(stream)
        self._held.append((work, memory))
        while self._held and self._held[0][0].done:
            self._held.popleft()
        return work

    @cached_property
    def _copy_stream(self) -> Any:
        return self.xp.cuda.Stream(non_blocking=True)

    @cached_property
    def _landing_memory(self) -> Any:
        return self.xp.cuda.MemoryPool()

    @cached_property
    def _held(self) -> deque[tuple[Copying, Any]]:
        """Unfinished work, each with the memory that it uses."""
        return deque()

    def _is_pinned(self, array: np.ndarray) -> bool:
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        return isinstance(getattr(owner, "obj", owner), self.xp.cuda.PinnedMemoryPointer)


class Copying(Pending):
    """A copy, or other work of a stream, that is done when its event is. `memory` gets the values."""

    def __init__(self, event: Any, memory: Any = None) -> None:
        super().__init__(memory)
        self.event = event

    @property
    def done(self) -> bool:
        return self.event.done

    def wait(self) -> None:
        if not self.event.done:
            self.event.synchronize()

    def value(self) -> Any:
        values = super().value()
        return float(values.reshape(-1)[0]) if values.size == 1 else values
