"""Copies between the host and the GPU that neither waits for."""

from __future__ import annotations

import math
import weakref
from collections import deque
from functools import cached_property
from typing import Any

import numpy as np

from fcaffe.engines.engine import DONE, Pending
from fcaffe.engines.memory import address

Array = Any

TURNS = 2  # uploads of one key that may be under way: one is taken over by the work stream, the next one arrives
STAGINGS = 64  # small copies that may be under way in each direction
STAGING_BYTES = 512


class Transfers:
    """The part of an engine that copies: large arrays on a stream of their own, small ones on the stream that works.

    `host_array` is for any thread, the rest for the one that gives the engine its work. None of it goes into graphs.
    """

    xp: Any
    device: Any
    stream: Any

    def host_array(self, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """Uninitialised page-locked memory, which the GPU reads and writes by itself. It is handed out anew as soon as
        nobody refers to the array: keep it while it is being copied."""
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        self.device.use()  # each thread has one, at first number 0
        memory = self.xp.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def upload(self, key: Any, host: np.ndarray, target: Array) -> Pending:
        """target[...] = host, after all work so far; `host` may be written again when the result is done.

        Both have one shape, `host` float32 and any strides, `target` any dtype. Memory of `host_array` that is dense
        travels while earlier work still runs; other memory is copied into such memory first, and is free at once. For
        each key (say, the blob; held weakly) there are two buffers on the device.
        """
        if host.shape != target.shape:
            raise ValueError(f"an array of shape {host.shape} cannot be uploaded into one of {target.shape}")
        if not host.size:
            return DONE
        host = np.asarray(host, np.float32)
        axes = sorted(range(host.ndim), key=lambda axis: -host.strides[axis])
        dense = host.transpose(axes)  # as it lies in memory
        slot = self._next_slot(key, host.size)
        if dense.flags.c_contiguous and self._is_pinned(host):
            source = dense
        else:
            slot.copied.wait()
            if slot.pinned is None or slot.pinned.size < host.size:
                slot.pinned = self.host_array((host.size,))
            source = slot.pinned[: host.size].reshape(dense.shape)
            source[...] = dense

        self._copy_stream.wait_event(slot.taken)
        runtime, stream = self.xp.cuda.runtime, self._copy_stream.ptr
        runtime.memcpyAsync(slot.device.data.ptr, address(source), source.nbytes, runtime.memcpyHostToDevice, stream)
        slot.source = source
        slot.copied = Copying(self._event())
        slot.copied.event.record(self._copy_stream)
        self._under_way.append((slot.copied, slot))
        while self._under_way[0][0].done and len(self._under_way) > 1:
            self._under_way.popleft()
        self.stream.wait_event(slot.copied.event)
        arrived = slot.device[: host.size].reshape(dense.shape).transpose(np.argsort(axes).tolist())
        self.copy(arrived, target)  # type: ignore[attr-defined]
        slot.taken.record(self.stream)
        return slot.copied if source is dense else DONE

    def read_later(self, array: Array) -> Pending:
        """The values of a small array after all work so far: a float if it is one, else a NumPy array."""
        array = array if array.flags.c_contiguous else array.copy(order="C")
        staging = self._results.next(array.nbytes)
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(
            address(staging.memory), array.data.ptr, array.nbytes, runtime.memcpyDeviceToHost, self.stream.ptr
        )
        staging.event.record(self.stream)
        staging.occupant = Reading(staging, array.shape, array.dtype)
        return staging.occupant

    def write_small(self, target: Array, values: np.ndarray) -> None:
        """target[...] = values, for a small contiguous `target` and after all work so far; `values` is free at once."""
        staging = self._parameters.next(target.nbytes)
        staging.view(target.shape, target.dtype)[...] = values
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(
            target.data.ptr, address(staging.memory), target.nbytes, runtime.memcpyHostToDevice, self.stream.ptr
        )
        staging.event.record(self.stream)
        staging.occupant = Copying(staging.event)

    @cached_property
    def _copy_stream(self) -> Any:
        return self.xp.cuda.Stream(non_blocking=True)

    @cached_property
    def _slots(self) -> weakref.WeakKeyDictionary[Any, deque[Slot]]:
        return weakref.WeakKeyDictionary()

    @cached_property
    def _under_way(self) -> deque[tuple[Any, Slot]]:
        """Uploads with their buffers, which must not be freed before the copy is done, even if the net is deleted."""
        return deque()

    @cached_property
    def _results(self) -> Ring:
        return Ring(self)

    @cached_property
    def _parameters(self) -> Ring:
        return Ring(self)

    def _event(self) -> Any:
        """An event whose waiting host thread sleeps."""
        return self.xp.cuda.Event(block=True, disable_timing=True)

    def _next_slot(self, key: Any, count: int) -> Slot:
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = deque(Slot(self._event()) for _ in range(TURNS))
        slots.rotate()
        slot = slots[0]
        if slot.device is None or slot.device.size < count:
            slot.device = self.xp.empty(count, np.float32)
            slot.taken.record(self.stream)  # which may still use the memory for what was there before
        return slot

    def _is_pinned(self, array: np.ndarray) -> bool:
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        return isinstance(getattr(owner, "obj", owner), self.xp.cuda.PinnedMemoryPointer)


class Slot:
    """The device buffer of an upload: the copy stream fills it, the work stream copies it to the target."""

    def __init__(self, taken: Any) -> None:
        self.device: Array = None  # flat
        self.taken = taken  # event: the work stream has read it
        self.copied: Any = DONE  # the copy into `device`
        self.pinned: np.ndarray | None = None  # for sources that are not pinned
        self.source: np.ndarray | None = None  # keeps the memory alive during the copy


class Copying(Pending):
    """A copy that is done when its event is."""

    def __init__(self, event: Any) -> None:
        super().__init__()
        self.event = event

    @property
    def done(self) -> bool:
        return self.event.done

    def wait(self) -> None:
        if not self.event.done:
            self.event.synchronize()


class Reading(Pending):
    """Values that are being copied to the host."""

    def __init__(self, staging: Staging, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__()
        self._staging: Staging | None = staging
        self._shape, self._dtype = shape, dtype

    @property
    def done(self) -> bool:
        return self._staging is None or self._staging.event.done

    def wait(self) -> None:
        if self._staging is None:
            return
        if not self._staging.event.done:
            self._staging.event.synchronize()
        values = self._staging.view(self._shape, self._dtype)
        self._value = float(values.reshape(-1)[0]) if values.size == 1 else values.copy()
        self._staging = None


class Staging:
    """A small pinned buffer, and the copy that uses it."""

    def __init__(self, memory: np.ndarray, event: Any) -> None:
        self.memory = memory
        self.event = event
        self.occupant = DONE

    def view(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        count = math.prod(shape)
        return self.memory[: count * dtype.itemsize].view(dtype).reshape(shape)


class Ring:
    """Staging buffers that are used in turn, so that the host may be as many copies ahead. All are allocated at the
    start: the driver may synchronise with the device to allocate pinned memory."""

    def __init__(self, engine: Transfers) -> None:
        self._engine = engine
        memory = engine.host_array((STAGINGS, STAGING_BYTES), np.uint8)
        self._stagings = deque(Staging(part, engine._event()) for part in memory)

    def next(self, nbytes: int) -> Staging:
        """A staging that no copy uses any more; what a reading was to find in it, that has now."""
        staging = self._stagings[0]
        self._stagings.rotate(-1)
        staging.occupant.wait()
        if staging.memory.size < nbytes:
            staging.memory = self._engine.host_array((nbytes,), np.uint8)
        return staging
