"""Streams, events, and the capture of graphs.

As in CuPy each thread has a current device, and for each device a current stream. `used` has the streams that were
given work, as (device, pointer).

Work outside a capture runs at once, except that what is copied to the host asynchronously arrives when somebody waits
for it, and that a copy from the host which has changed by then is a DataRaceError. Inside a capture work is recorded,
not run.

With `put_off_all_work` nothing that a stream is given runs before somebody waits for it, and who waits for a stream
lets all newer ones run first, so that a missing event or a missing wait shows as a wrong sum. `calls` then has the
events, waits, copies and sums by NCCL in the order in which the host asks for them; streams are told by pointers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import errors
from tests.engines.cuda.stand_in_cupy.errors import CUDARuntimeError, DataRaceError

Work = Callable[[], object]
PATIENCE = 20  # how often an event is asked for before work that is put off goes on by itself
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


class Arrival:
    """What counts as done when somebody has waited for it."""

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work

    @property
    def is_awaited(self) -> bool:
        return self._work is None

    def arrive(self) -> None:
        work, self._work = self._work, None
        if work:
            work()


class Capture:
    """What one capture has recorded, and which streams take part."""

    def __init__(self, origin: Stream, mode: int) -> None:
        self.origin, self.mode = origin, mode
        self.thread = threading.get_ident()
        self.work: list[Work] = []
        self.last: dict[Stream, int] = {}  # of each stream that takes part, how much work there was after its last
        self.seen: dict[Stream, dict[Stream, int]] = {}  # up to where of others each stream has waited for
        self.valid = True

    def is_joined(self) -> bool:
        """Whether the origin has waited for all that others were given."""
        seen = self.seen.get(self.origin, {})
        return all(seen.get(stream, -1) >= last for stream, last in self.last.items() if stream is not self.origin)


class _Current(threading.local):
    def __init__(self) -> None:
        self.device = 0
        self.stack: list[Stream] = []
        self.current: dict[int, Stream] = {}  # by device
        self.running: Stream | None = None  # on which a graph's work runs


_of_thread = _Current()


def device() -> int:
    """The current device of this thread."""
    return _of_thread.device


def use_device(number: int) -> None:
    _of_thread.device = number


class Stream:
    null: Stream
    _next = 0x1000
    _by_pointer: dict[int, Stream] = {}

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.is_non_blocking = non_blocking
        self.priority = priority or 0
        self.capture: Capture | None = None
        self._arriving: list[Arrival] = []
        self.put_off: list[Work] = []
        self.ran = 0  # so many of these have run
        self.device = device()
        if null:
            self.ptr = 0
        else:
            Stream._next += 16
            self.ptr = Stream._next
        Stream._by_pointer[self.ptr] = self

    def use(self) -> Stream:
        """As in CuPy this leaves the stack alone, so that the end of a `with` undoes it."""
        if self.ptr and self.device != device():
            raise RuntimeError(f"a stream of device {self.device} cannot be current on device {device()}")
        _of_thread.current[device()] = self
        return self

    def __enter__(self) -> Stream:
        _of_thread.stack.append(self)
        return self.use()

    def __exit__(self, *_: object) -> None:
        _of_thread.stack.pop()
        (_of_thread.stack[-1] if _of_thread.stack else Stream.null).use()

    def synchronize(self) -> None:
        synchronise("Stream.synchronize", self)

    @property
    def done(self) -> bool:
        if self.capture:
            self.capture.valid = False
            raise CUDARuntimeError(errors.UNSUPPORTED_IN_CAPTURE, "cudaStreamQuery")
        self.arrive()
        return True

    def wait_event(self, event: Event) -> None:
        if puts_off():
            calls.append(("wait", self.ptr, event.ptr))
            self.put_off.append(event.runner())
            return
        if self.capture is None:
            if not (event.capture and event.capture in _captures):
                self._arriving += event._awaited
                return
            self.capture = event.capture  # this stream joins
            self.capture.last[self] = len(self.capture.work)
        if event.capture is not self.capture:
            self.capture.valid = False
            raise CUDARuntimeError(errors.CAPTURE_ISOLATION)
        seen = self.capture.seen.setdefault(self, {})
        for stream, place in event.seen.items():
            seen[stream] = max(place, seen.get(stream, -1))

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self.capture:
            raise CUDARuntimeError(errors.INVALID_VALUE, "the stream is capturing already")
        self.capture = Capture(self, RELAXED if mode is None else mode)
        _captures.append(self.capture)

    def end_capture(self) -> Graph:
        capture = self.capture
        if capture is None or capture.origin is not self:
            raise CUDARuntimeError(errors.INVALID_VALUE, "the stream began no capture")
        _captures.remove(capture)
        for stream in list(Stream._by_pointer.values()):
            if stream.capture is capture:
                stream.capture = None
        if not capture.valid:
            raise CUDARuntimeError(errors.CAPTURE_INVALIDATED)
        if not capture.is_joined():
            raise CUDARuntimeError(errors.CAPTURE_UNJOINED)
        return Graph(capture.work)

    def is_capturing(self) -> bool:
        return self.capture is not None

    def run(self, until: int) -> None:
        """That much of what was put off."""
        while self.ran < until:
            self.ran += 1
            self.put_off[self.ran - 1]()

    def arrive(self) -> None:
        """What was copied to the host is there now, and what was put off is done."""
        if puts_off():
            for stream in reversed(all_streams()):
                if stream.ptr >= self.ptr:
                    stream.run(len(stream.put_off))
        arriving, self._arriving = self._arriving, []
        for each in arriving:
            each.arrive()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr


_captures: list[Capture] = []
_puts_off = False
calls: list[tuple[Any, ...]] = []
used: set[tuple[int, int]] = set()
Stream.null = Stream(null=True)


def put_off_all_work() -> None:
    """From now on, until `reset`."""
    global _puts_off
    _puts_off = True


def puts_off() -> bool:
    return _puts_off


def current(device_id: int = -1) -> Stream:
    return _of_thread.current.get(device(), Stream.null)


def stream_at(pointer: int) -> Stream:
    return Stream._by_pointer[pointer]


def all_streams() -> list[Stream]:
    """In the order in which they were made."""
    return sorted(Stream._by_pointer.values(), key=lambda stream: stream.ptr)


def _given(stream: Any) -> Stream:
    if stream is None:
        return current()
    return stream_at(stream) if isinstance(stream, int) else stream


def capturing(stream: Any = None) -> Capture | None:
    """The capture that work for this stream (the current one) is recorded in."""
    return _given(stream).capture


def put(work: Work, stream: Any = None) -> None:
    """Run work that changes device memory, or record it."""
    stream = _given(stream)
    if stream.ptr and stream.device != device():
        raise CUDARuntimeError(errors.INVALID_HANDLE, f"a stream of device {stream.device} on device {device()}")
    used.add((device(), stream.ptr))
    capture = stream.capture
    if puts_off():
        stream.put_off.append(work)
        return
    if capture is None:
        with np.errstate(all="ignore"):
            work()
        return
    capture.work.append(work)
    capture.last[stream] = len(capture.work)


def synchronise(what: str, stream: Any = None) -> None:
    """The host waits for a stream. Raises CUDARuntimeError in a capture."""
    stream = _given(stream)
    _refuse(what, stream)
    errors.synchronisations.append(f"{what} at {errors.caller()}")
    stream.arrive()


def upload(what: str, stream: Any = None) -> None:
    """Pageable host memory is copied to the device. Raises CUDARuntimeError in a capture."""
    _refuse(f"{what} copies from host memory that a graph would read again", _given(stream))
    errors.uploads.append(f"{what} at {errors.caller()}")


def _refuse(what: str, stream: Stream) -> None:
    if stream.capture:
        stream.capture.valid = False
        raise CUDARuntimeError(errors.UNSUPPORTED_IN_CAPTURE, f"{what} at {errors.caller()}")


def synchronise_device(what: str) -> None:
    """The host waits for all streams."""
    if _captures:
        for capture in _captures:
            capture.valid = False
        raise CUDARuntimeError(errors.UNSUPPORTED_IN_CAPTURE, f"{what} at {errors.caller()}")
    errors.synchronisations.append(f"{what} at {errors.caller()}")
    for stream in list(Stream._by_pointer.values()):
        stream.arrive()


def forbids_allocation() -> bool:
    """Whether a capture goes on in whose mode memory must not be allocated by this thread."""
    thread = threading.get_ident()
    return any(c.mode == GLOBAL or (c.mode == THREAD_LOCAL and c.thread == thread) for c in _captures)


def invalidate() -> None:
    for capture in _captures:
        capture.valid = False


def copy_to_host(source: np.ndarray, out: np.ndarray, stream: Any = None) -> None:
    """Asynchronously: `out` has the values when somebody has waited for the stream."""
    stream = _given(stream)
    if puts_off():
        calls.append(("to host", out.nbytes, stream.ptr))
        put(lambda: np.copyto(out, source), stream)
        return

    def copy() -> None:
        values = source.copy()
        (_of_thread.running or stream)._arriving.append(Arrival(lambda: np.copyto(out, values)))

    put(copy, stream)


def copy_from_host(source: np.ndarray, target: np.ndarray, stream: Any = None) -> None:
    """Asynchronously: `source` must stay as it is until somebody has waited for the stream."""
    stream = _given(stream)
    if puts_off():
        calls.append(("to device", target.nbytes, stream.ptr))
        put(lambda: np.copyto(target, source), stream)
        return
    where = errors.caller()

    def copy() -> None:
        values = source.copy()
        target[...] = values

        def check() -> None:
            if values.tobytes() != source.tobytes():
                raise DataRaceError(f"host memory was written before the copy from it at {where} was known to be done")

        (_of_thread.running or stream)._arriving.append(Arrival(check))

    put(copy, stream)


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = id(self)
        self.stream: Stream | None = None
        self.capture: Capture | None = None
        self.seen: dict[Stream, int] = {}  # in a capture: what lies before it, of each stream
        self._awaited: list[Arrival] = []
        self._until = 0  # of what its stream has put off
        self._asked = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = _given(stream)
        self.capture = self.stream.capture
        if self.capture:
            self.seen = {**self.capture.seen.get(self.stream, {}), self.stream: len(self.capture.work)}
        if puts_off():
            calls.append(("record", self.ptr, self.stream.ptr))
            self.stream.put_off.append(lambda: None)
            self._until = len(self.stream.put_off)
            return
        self.stream._arriving = [each for each in self.stream._arriving if not each.is_awaited]
        self._awaited = list(self.stream._arriving)

    def runner(self) -> Work:
        """Runs what is put off of what lies before the event as it is recorded now, as cudaStreamWaitEvent waits."""
        stream, until = self.stream, self._until
        return lambda: stream.run(until) if stream else None

    def synchronize(self) -> None:
        self._refuse_captured()
        if puts_off():
            calls.append(("synchronize", self.ptr))
            self.runner()()
        errors.synchronisations.append(f"Event.synchronize at {errors.caller()}")
        self._arrive()

    @property
    def done(self) -> bool:
        self._refuse_captured()
        if puts_off():
            self._asked += 1
            if self._asked % PATIENCE == 0:
                self.runner()()
            return self.stream is None or self.stream.ran >= self._until
        self._arrive()
        return True

    def _arrive(self) -> None:
        for each in self._awaited:
            each.arrive()
        self._awaited = []

    def _refuse_captured(self) -> None:
        if self.capture:
            raise CUDARuntimeError(errors.CAPTURED_EVENT)


class Graph:
    """Recorded work."""

    def __init__(self, work: list[Work]) -> None:
        self.work = work
        self.graph = self.graphExec = id(self)
        self.launches = 0

    def launch(self, stream: Stream | None = None) -> None:
        stream = _given(stream)
        self.launches += 1
        if stream.capture or puts_off():
            for work in self.work:
                put(work, stream)
            return
        before, _of_thread.running = _of_thread.running, stream
        try:
            with np.errstate(all="ignore"):
                for work in self.work:
                    work()
        finally:
            _of_thread.running = before


def reset() -> None:
    """Forget captures that a failed test left open, and what was put off."""
    global _puts_off
    _puts_off = False
    calls.clear()
    used.clear()
    use_device(0)
    for capture in list(_captures):
        _captures.remove(capture)
    for stream in list(Stream._by_pointer.values()):
        stream.capture = None
        stream._arriving.clear()
        stream.put_off.clear()
        stream.ran = 0
    _of_thread.stack.clear()
    _of_thread.current.clear()
