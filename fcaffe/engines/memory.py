"""Memory of arrays: addresses, aligned buffers, and how much is free."""

from __future__ import annotations

import ctypes
import os
import resource
import weakref
from pathlib import Path
from typing import Any

import numpy

from fcaffe import cgroups
from fcaffe.errors import OutOfMemoryError
from fcaffe.threads import ranks_on_host

LARGE = 1 << 26  # bytes; for larger arrays the free memory is checked, since Linux grants more than there is
MOST_ADDRESSES = 4096  # cached
ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
GAP = 4096  # bytes behind each array: loads wait for stores that lie a few cache lines behind them modulo 1 MB

Array = Any  # numpy.ndarray or cupy.ndarray; their common protocol has no types

_addresses: dict[int, tuple[weakref.ref[Any], int]] = {}  # of arrays by their ids


def address(array: Any) -> int:
    """The address of a NumPy array. Cached, since NumPy takes longer to compute it than oneDNN to run a small layer."""
    known = _addresses.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    if len(_addresses) >= MOST_ADDRESSES:
        _addresses.clear()
    found: int = array.__array_interface__["data"][0]
    _addresses[id(array)] = weakref.ref(array), found
    return found


def foreign(array: numpy.ndarray) -> Any:
    """The memory of a flat array as a ctypes object, which keeps the array alive.

    Views of an array over this object have that array as their base, not the array that owns the memory.
    """
    kind: Any = ctypes.c_byte * array.nbytes
    return kind.from_buffer(array)


def aligned_zeros(xp: Any, count: int, dtype: Any = numpy.float32) -> Any:
    """`count` zeros that begin on a cache line. CuPy's memory always does."""
    if xp is not numpy:
        return xp.zeros(count, dtype)
    size = count * numpy.dtype(dtype).itemsize
    check_room(size)
    raw = numpy.zeros(size + ALIGNMENT + GAP, numpy.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + size].view(dtype)


def check_room(size: int) -> None:
    """Raise OutOfMemoryError if an array of so many bytes does not fit into what this process can still have.

    Linux grants more memory than there is, and kills the process when it is written: nobody would learn why.
    """
    if size < LARGE:
        return
    free = free_bytes()
    if free is not None and size > free:
        raise OutOfMemoryError(f"an array of {size:,} bytes does not fit: this process can have {free:,} bytes more")


def readable_size(count: int) -> str:
    """Bytes for humans: 123 MB, 4.56 GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def logical_view(flat: Any, shape: tuple[int, ...], channels_last: bool) -> Any:
    """The values of a flat array as (N, C, spatial...), where they lie in this order or, channels last, C behind."""
    if not channels_last:
        return flat.reshape(shape)
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return flat.reshape(shape[0], *shape[2:], shape[1]).transpose(axes)


def obtainable_bytes(xp: Any) -> int | None:
    """The memory that this process could have in all, with what it has already; None if the system does not tell."""
    if xp is not numpy:
        return int(xp.cuda.Device().mem_info[0]) + int(xp.get_default_memory_pool().total_bytes())
    free = free_bytes()
    _, resident, shared, *_ = _own_bytes()  # what is shared are pages of files, which count as free
    return None if free is None else free + resident - shared


def free_bytes() -> int | None:
    """The memory that this process could have beyond what it has already; None if the system does not tell.

    It is what the machine has left, or what the control groups of this process (a container's, a batch job's) leave it,
    swap space included and shared fairly among the ranks on this host; or what `ulimit -v` or `ulimit -d` allow.
    """
    rooms = []
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        machine = {words[0]: 1024 * int(words[1]) for words in lines}
        swap = machine.get("SwapFree:", 0)
        if "MemAvailable:" in machine:
            rooms.append((machine["MemAvailable:"] + swap) // ranks_on_host())
        if (room := cgroups.free_memory(swap)) is not None:
            rooms.append(room // ranks_on_host())
    except OSError:
        pass
    for kind, used in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            rooms.append(max(0, limit - _own_bytes()[used]))
    return min(rooms, default=None)


def _own_bytes() -> tuple[int, ...]:
    """The bytes of this process as /proc/self/statm has them: mapped, resident, shared, code, libraries, data."""
    try:
        words = Path("/proc/self/statm").read_text().split()
    except OSError:
        return (0,) * 7
    return tuple(int(word) * os.sysconf("SC_PAGE_SIZE") for word in words)
