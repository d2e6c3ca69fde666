"""The stand-in for CuPy refuses what CuPy and CUDA refuse, and shows what would go wrong on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.stand_in_cupy import CUDARuntimeError, DataRaceError

xp = stand_in_cupy.cupy
cuda = stand_in_cupy.cuda


@pytest.fixture(autouse=True)
def stream() -> Iterator[Any]:
    made = cuda.Stream(non_blocking=True)
    made.use()
    yield made
    stand_in_cupy.reset()


def device(*values: float) -> Any:
    return xp.asarray(np.array(values, np.float32))


def test_arrays_of_numpy_are_refused() -> None:
    array = device(1, 2)
    with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy.ndarray'>"):
        array + np.ones(2)
    with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy.ndarray'>"):
        np.ones(2) + array
    with pytest.raises(TypeError, match=r"Implicit conversion .* use `\.get\(\)`"):
        np.asarray(array)
    with pytest.raises(ValueError, match=r"non-scalar numpy.ndarray cannot be used for fill"):
        array[...] = np.ones(2)
    assert (np.float32(2) * array).get().tolist() == [2, 4]
    assert array.sum().shape == array[0].shape == ()


def test_work_that_is_put_off_shows_a_missing_wait() -> None:
    stand_in_cupy.put_off_all_work()
    older, newer, written = cuda.Stream(non_blocking=True), cuda.Stream(non_blocking=True), cuda.Event()
    with older:
        array, copied = xp.zeros(2, np.float32), xp.zeros(2, np.float32)
        older.synchronize()
        for waits, expected in ((False, 0), (True, 1)):
            array.fill(1)
            written.record(older)
            if waits:
                newer.wait_event(written)
            stand_in_cupy.put(lambda: np.copyto(stand_in_cupy.live(copied), stand_in_cupy.live(array)), newer)
            older.synchronize()
            assert copied.get().tolist() == [expected] * 2
            array.fill(0)
            older.synchronize()


@pytest.mark.parametrize(
    "wait", [float, lambda array: array.get(), lambda _: xp.asarray(np.ones(2)), lambda a: a[a > 0]]
)
def test_a_capture_does_not_wait_for_the_device(stream: Any, wait: Any) -> None:
    array = device(1)
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="StreamCaptureUnsupported"):
        wait(array)
    with pytest.raises(CUDARuntimeError, match="StreamCaptureInvalidated"):
        stream.end_capture()


def test_other_streams_join_a_capture_and_must_be_joined(stream: Any) -> None:
    other, ready, done = cuda.Stream(non_blocking=True), cuda.Event(), cuda.Event()
    array = device(1)
    for join in (True, False):
        stream.begin_capture()
        ready.record(stream)
        other.wait_event(ready)
        with other:
            array += 1
        done.record(other)
        if join:
            stream.wait_event(done)
            stream.end_capture().launch(stream)
        else:
            with pytest.raises(CUDARuntimeError, match="Unjoined"):
                stream.end_capture()
    assert float(array[0]) == 2
    done.record(other)
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="Isolation"):
        stream.wait_event(done)


def pinned(count: int) -> np.ndarray:
    made = np.frombuffer(cuda.alloc_pinned_memory(4 * count), np.float32, count)
    made[...] = 0
    return made


def test_host_memory_must_stay_while_it_is_copied(stream: Any) -> None:
    host, array = pinned(2), device(1, 2)
    array.set(host, stream)
    host[0] = 5
    with pytest.raises(DataRaceError, match="test_stand_in_cupy"):
        stream.synchronize()
    other, event = cuda.Stream(non_blocking=True), cuda.Event()
    array.set(host, other)
    event.record(other)
    stream.wait_event(event)
    stream.synchronize()
    host[0] = 6
    other.synchronize()
