"""Device memory, which here is host memory, in pools that hand freed blocks out again as CuPy's do.

Fresh memory holds rubbish (NaN as floats, -1 as integers). A pool knows nothing of graphs that still use a block that
Python has let go of: who replays such a graph overwrites whatever got the block since, as on a GPU.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import streams
from tests.engines.cuda.stand_in_cupy.errors import UNSUPPORTED_IN_CAPTURE, CUDARuntimeError, OutOfMemoryError

UNIT = 512  # bytes to which CuPy rounds sizes up
GUARD = 128  # bytes behind each allocation, which nothing may write
RUBBISH = 255  # in each byte of fresh memory: NaN as floats

_lock = threading.RLock()
_starts: list[int] = []
_blocks: dict[int, Block] = {}


class Block:
    """A stretch of device memory."""

    def __init__(self, size: int) -> None:
        raw = np.empty(size + UNIT, np.uint8)
        start = -raw.__array_interface__["data"][0] % UNIT
        self.bytes = raw[start : start + size]
        self.address: int = self.bytes.__array_interface__["data"][0]
        self.size = size
        self.device = streams.device()
        with _lock:
            _blocks[self.address] = self
            bisect.insort(_starts, self.address)

    def release(self) -> None:
        with _lock:
            del _blocks[self.address]
            _starts.remove(self.address)


def memory_at(pointer: int) -> np.ndarray:
    """The bytes of device memory from this address to the end of its block. Raises CUDARuntimeError."""
    with _lock:
        place = bisect.bisect_right(_starts, pointer) - 1
        block = _blocks[_starts[place]] if place >= 0 else None
    if block is None or pointer >= block.address + block.size:
        raise CUDARuntimeError(700, f"illegal address {pointer:#x}: no device memory")
    return block.bytes[pointer - block.address :]


def as_numpy(pointer: int, dtype: Any, count: int) -> np.ndarray:
    """`count` values of device memory, live. Raises CUDARuntimeError if they do not lie in one block."""
    size = count * np.dtype(dtype).itemsize
    memory = memory_at(pointer) if size else np.empty(0, np.uint8)
    if memory.size < size:
        raise CUDARuntimeError(700, f"illegal address: {size} bytes at {pointer:#x}, only {memory.size} are there")
    return memory[:size].view(dtype)


def host_bytes(pointer: int, size: int) -> np.ndarray:
    """Bytes of host memory, live."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer)) if size else np.empty(0, np.uint8)


class Memory:
    """What one allocation holds; gives its block back to the pool when nobody refers to it."""

    def __init__(self, block: Block, pool: MemoryPool, size: int) -> None:
        self.block, self.pool, self.size = block, pool, size
        self.ptr = block.address
        self.device_id = block.device

    def __del__(self) -> None:
        beyond = self.block.bytes[self.size :]
        self.pool._take_back(self.block)
        assert (beyond == RUBBISH).all(), "memory behind an array was written"


class MemoryPointer:
    """A place in an allocation."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset
        self.device_id: int = mem.device_id

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__


class MemoryPool:
    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self._free: dict[tuple[int, int], list[Block]] = {}  # by device and size
        self._lock = threading.RLock()
        self._used = self._total = self._limit = 0

    def malloc(self, size: int) -> MemoryPointer:
        wanted, size = size, -(-size // UNIT) * UNIT + GUARD
        with self._lock:
            free = self._free.get((streams.device(), size))
            # Work that is put off may still use a block: it is given to no other then.
            block = free.pop() if free and not streams.puts_off() else self._new_block(size)
            self._used += size
        block.bytes.fill(RUBBISH)
        return MemoryPointer(Memory(block, self, wanted), 0)

    def _new_block(self, size: int) -> Block:
        if streams.forbids_allocation():
            streams.invalidate()
            raise CUDARuntimeError(UNSUPPORTED_IN_CAPTURE, "cudaMalloc")
        for limit, cleared in ((self._limit, False), (self._limit, True)):
            if (limit and self._total + size > limit) or runtime_free() < size:
                if cleared:
                    raise OutOfMemoryError(size, self._total, limit)
                self.free_all_blocks()
        self._total += size
        return Block(size)

    def _take_back(self, block: Block) -> None:
        with self._lock:
            self._used -= block.size
            self._free.setdefault((block.device, block.size), []).append(block)

    def free_all_blocks(self, stream: Any = None) -> None:
        with self._lock:
            for blocks in self._free.values():
                for block in blocks:
                    self._total -= block.size
                    block.release()
            self._free.clear()

    def total_bytes(self) -> int:
        return self._total

    def free_bytes(self) -> int:
        return self._total - self._used

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = int(fraction * TOTAL_MEMORY) if fraction is not None else size or 0

    def get_limit(self) -> int:
        return self._limit


TOTAL_MEMORY = 150_122_725_376  # bytes, an H200's


def runtime_free() -> int:
    with _lock:
        return TOTAL_MEMORY - sum(block.size for block in _blocks.values())


default_pool = MemoryPool()
Allocator = Callable[[int], MemoryPointer]


class _Allocators(threading.local):
    def __init__(self) -> None:
        self.own: list[Allocator] = []  # by `using_allocator`


_of_thread = _Allocators()


def get_allocator() -> Allocator:
    return _of_thread.own[-1] if _of_thread.own else default_pool.malloc


@contextlib.contextmanager
def using_allocator(allocator: Allocator | None = None) -> Iterator[None]:
    _of_thread.own.append(default_pool.malloc if allocator is None else allocator)
    try:
        yield
    finally:
        _of_thread.own.pop()


def alloc(size: int) -> MemoryPointer:
    return get_allocator()(size)


class PinnedMemoryPointer(bytearray):
    """Pinned host memory; rounded up, as CuPy's, so that who makes an array of it must say how long."""


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    if streams.forbids_allocation():
        streams.invalidate()
        raise CUDARuntimeError(UNSUPPORTED_IN_CAPTURE, "cudaHostAlloc")
    return PinnedMemoryPointer(-(-size // UNIT) * UNIT)
