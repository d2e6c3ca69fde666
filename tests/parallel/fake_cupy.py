"""A stand-in for CuPy: "device" arrays are NumPy's, and streams put off their work as far as events allow.

Nothing that a stream is given runs before somebody waits for it, and who waits for a stream lets all newer ones run
first, so a missing event or a missing wait shows as a wrong sum. `calls` records the calls of NCCL, copies, events and
waits in the order in which the host makes them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

calls: list[tuple[Any, ...]] = []
PATIENCE = 20
BUS = "0000:{:02x}:00.0"


class Array(np.ndarray):
    """An array of a device."""

    def get(self) -> np.ndarray:
        current().synchronize()
        return np.array(self)

    def set(self, values: np.ndarray) -> None:
        assert self.shape == values.shape and self.dtype == values.dtype and self.flags.c_contiguous
        kept = values.copy()
        current().put(lambda: np.copyto(self.view(np.ndarray), kept))

    def copy(self, order: Any = "C") -> Any:
        made = np.full(self.shape, 77, self.dtype, order).view(Array)
        current().put(lambda: np.copyto(made.view(np.ndarray), self.view(np.ndarray)))
        return made

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        given = [one.view(np.ndarray) if isinstance(one, Array) else one for one in inputs]
        if not out:
            return getattr(ufunc, method)(*given, **options)
        current().put(lambda: getattr(ufunc, method)(*given, out=out[0].view(np.ndarray), **options))
        return out[0]


class Stream:
    """Work, and how much of it has run. Its number is its `ptr`."""

    made: list[Stream] = []

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking or not Stream.made  # the first is the default stream
        self.ptr = len(Stream.made)
        self.work: list[Callable[[], None]] = []
        self.ran = 0
        Stream.made.append(self)

    def put(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def wait_event(self, event: Event) -> None:
        calls.append(("wait", self.ptr, event.number))
        self.put(event.waiter())

    def run(self, until: int) -> None:
        while self.ran < until:
            self.ran += 1
            self.work[self.ran - 1]()

    def synchronize(self) -> None:
        for stream in reversed(Stream.made[self.ptr :]):
            stream.run(len(stream.work))

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> None:
        of_thread.streams.append(self)

    def __exit__(self, *_: object) -> None:
        of_thread.streams.pop()


class OfThread(threading.local):
    """In each thread the default stream is the current one until another is."""

    def __init__(self) -> None:
        self.streams = [Stream.made[0] if Stream.made else Stream()]


of_thread = OfThread()


def current() -> Stream:
    return of_thread.streams[-1]


class Event:
    made = 0

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.timed = not disable_timing
        self.time = 0.0
        self.asked = 0
        self.number = Event.made
        Event.made += 1
        self.place: tuple[Stream, int] | None = None

    def record(self, stream: Stream) -> None:
        calls.append(("record", self.number, stream.ptr))
        stream.put(self._take_time)
        self.place = stream, len(stream.work)

    def _take_time(self) -> None:
        self.time = time.perf_counter()

    def waiter(self) -> Callable[[], None]:
        """Waits for what is recorded now, as cudaStreamWaitEvent does."""
        place = self.place
        return lambda: place[0].run(place[1]) if place else None

    def synchronize(self) -> None:
        calls.append(("synchronize", self.number))
        self.waiter()()

    @property
    def done(self) -> bool:
        """As things are; they go on for who asks again and again."""
        self.asked += 1
        if self.asked % PATIENCE == 0:
            self.waiter()()
        return self.place is None or self.place[0].ran >= self.place[1]


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds."""
    assert start.timed and end.timed and start.done and end.done
    return 1e3 * (end.time - start.time)


class Device:
    def __init__(self) -> None:
        self.id = runtime.getDevice()

    def use(self) -> None:
        pass


def floats(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)) if count else np.empty(0, np.float32)


def memcpy_async(to: int, source: int, size: int, kind: int, stream: int) -> None:
    calls.append(("to device" if kind == 1 else "to host", size, stream))
    Stream.made[stream].put(lambda: ctypes.memmove(to, source, size))


class NcclError(RuntimeError):
    pass


class NcclCommunicator:
    """NCCL's operations, done by MPI when their stream runs."""

    broken = ""  # what check_async_error complains of

    def __init__(self, ranks: int, identity: tuple[int, ...], rank: int) -> None:
        from mpi4py import MPI

        assert len(identity) == 128
        self.comm = MPI.COMM_WORLD.Split(identity[0], rank)
        assert (self.comm.size, self.comm.rank) == (ranks, rank)
        calls.append(("init", ranks, rank))

    def allReduce(self, source: int, to: int, count: int, kind: int, add: int, stream: int) -> None:  # noqa: N802
        assert source == to
        calls.append(("allReduce", count, kind, add, stream))
        Stream.made[stream].put(lambda: self._all_reduce(floats(to, count)))

    def reduceScatter(self, source: int, to: int, count: int, kind: int, add: int, stream: int) -> None:  # noqa: N802
        assert to == source + 4 * count * self.comm.rank
        calls.append(("reduceScatter", count, kind, add, stream))
        Stream.made[stream].put(lambda: self._all_reduce(floats(source, count * self.comm.size), to, count))

    def reduce(self, source: int, to: int, count: int, kind: int, add: int, root: int, stream: int) -> None:
        assert source == to
        calls.append(("reduce", count, kind, add, root, stream))
        own = self.comm.rank == root
        Stream.made[stream].put(lambda: self._all_reduce(floats(source, count), to, count if own else 0))

    def allGather(self, source: int, to: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        assert source == to + 4 * count * self.comm.rank
        calls.append(("allGather", count, kind, stream))
        Stream.made[stream].put(
            lambda: self.comm.Allgather(floats(source, count).copy(), floats(to, count * self.comm.size))
        )

    def broadcast(self, source: int, to: int, count: int, kind: int, root: int, stream: int) -> None:
        assert source == to
        calls.append(("broadcast", count, kind, root, stream))
        Stream.made[stream].put(lambda: self.comm.Bcast(floats(to, count), root))

    def _all_reduce(self, values: np.ndarray, to: int | None = None, count: int = 0) -> None:
        """Like NCCL, leaves rubbish in what is not this rank's."""
        total = np.empty_like(values)
        self.comm.Allreduce(values, total)
        if to is None:
            values[:] = total
            return
        start = (to - values.ctypes.data) // 4
        values[:] = np.nan
        values[start : start + count] = total[start : start + count]

    def check_async_error(self) -> None:
        if NcclCommunicator.broken:
            raise NcclError(NcclCommunicator.broken)

    def abort(self) -> None:
        calls.append(("abort",))

    def destroy(self) -> None:
        calls.append(("destroy",))


def unique_id() -> tuple[int, ...]:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, *range(127)


runtime = SimpleNamespace(
    devices=1,
    current=0,
    memcpyHostToDevice=1,
    memcpyDeviceToHost=2,
    memcpyAsync=memcpy_async,
    getDeviceCount=lambda: runtime.devices,
    getDevice=lambda: runtime.current,
    deviceGetPCIBusId=BUS.format,
)
nccl = ModuleType("cupy.cuda.nccl")
nccl.__dict__.update(
    available=True,
    NcclError=NcclError,
    NcclCommunicator=NcclCommunicator,
    NCCL_FLOAT32=7,
    NCCL_SUM=0,
    get_unique_id=unique_id,
    groupStart=lambda: calls.append(("groupStart",)),
    groupEnd=lambda: calls.append(("groupEnd",)),
)
cuda = ModuleType("cupy.cuda")
cuda.__dict__.update(
    Stream=Stream,
    Event=Event,
    Device=Device,
    runtime=runtime,
    nccl=nccl,
    PinnedMemoryPointer=bytearray,
    alloc_pinned_memory=bytearray,
    get_current_stream=current,
    get_elapsed_time=get_elapsed_time,
)
cupy = ModuleType("cupy")
cupy.__dict__.update(
    cuda=cuda,
    ndarray=Array,
    float32=np.float32,
    zeros=lambda count, kind: np.zeros(count, kind).view(Array),
    empty=lambda count, kind: np.full(count, 77, kind).view(Array),
)


def install() -> Any:
    """Make `import cupy` find this."""
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl})
    return cupy
