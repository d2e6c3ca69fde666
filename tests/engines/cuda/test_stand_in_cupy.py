"""The stand-in for CuPy refuses what CuPy and CUDA refuse, and shows what would go wrong on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.stand_in_cupy import CUDARuntimeError, DataRaceError, OutOfMemoryError

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


def test_results_are_in_c_order() -> None:
    channels_last = xp.empty((2, 5, 5, 3), np.float32).transpose(0, 3, 1, 2)
    assert (channels_last + 1).flags.c_contiguous
    assert xp.empty_like(channels_last).strides == channels_last.strides


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


def test_what_waits_is_noted_where_it_happens() -> None:
    array = device(1, 2)
    with stand_in_cupy.watched() as (waits, uploads):
        float(array[0])
        array[array > 1]
        array[xp.zeros(1, np.int64)] = 3
    assert [wait.split(" at ")[0] for wait in waits] == ["float()", "boolean index"]
    assert all("test_stand_in_cupy.py" in each for each in waits + uploads)
    assert len(uploads) == 1


def test_a_graph_computes_anew_what_was_asked_for_in_its_capture(stream: Any) -> None:
    array, total = device(1, 2), xp.zeros((), np.float32)
    stream.begin_capture()
    array *= 2
    total[...] = (array + 1).sum()
    graph = stream.end_capture()
    assert array.get().tolist() == [1, 2], "nothing has run yet"
    for expected in (8, 14):
        graph.launch(stream)
        assert float(total) == expected


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


def test_a_copy_to_the_host_arrives_when_somebody_waits(stream: Any) -> None:
    host, event = stand_in_cupy.cupyx.zeros_pinned(2, np.float32), cuda.Event(disable_timing=True)
    device(1, 2).get(out=host, blocking=False)
    assert host.tolist() == [0, 0]
    event.record(stream)
    event.synchronize()
    assert host.tolist() == [1, 2]


def test_host_memory_must_stay_while_it_is_copied(stream: Any) -> None:
    host, array = stand_in_cupy.cupyx.zeros_pinned(2, np.float32), device(1, 2)
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


def test_memory_is_handed_out_again_full_of_rubbish() -> None:
    pool = cuda.MemoryPool()
    pool.set_limit(2048)
    with cuda.using_allocator(pool.malloc):
        first = xp.zeros(100, np.float32)
        place = first.data.ptr
        assert (pool.used_bytes(), pool.total_bytes()) == (512, 512)
        del first
        again = xp.empty(90, np.float32)
        assert again.data.ptr == place and np.isnan(again.get()).all()
        with pytest.raises(OutOfMemoryError, match="limit set to: 2,048 bytes"):
            xp.empty(600, np.float32)
    stand_in_cupy.as_numpy(place, np.float32, 90)[:] = 3
    assert float(again.max()) == 3
    with pytest.raises(CUDARuntimeError, match="illegal address"):
        stand_in_cupy.as_numpy(place, np.float32, 1000)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_gemm_is_column_major(dtype: type, left: bool, right: bool) -> None:
    cublas, handle, kind = cuda.cublas, cuda.get_cublas_handle(), {np.float32: 0, np.float16: 2}[dtype]
    random = np.random.default_rng(0)
    m, n, k = 3, 4, 5
    a, b, c = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    # Row by row a matrix is its transpose column by column; leading dimensions are longer than they need be.
    stored = [
        xp.zeros((rows, columns + 1), dtype) for rows, columns in (((m, k), (k, m))[left], ((k, n), (n, k))[right])
    ]
    for array, values in zip(stored, (a.T if left else a, b.T if right else b), strict=True):
        array[:, :-1] = xp.asarray(values)
    out = xp.asarray(c)
    alpha, beta = np.array(2, np.float32), np.array(0.5, np.float32)
    cublas.gemmEx(
        handle, int(right), int(left), n, m, k, alpha.ctypes.data, stored[1].data.ptr, kind, stored[1].shape[1],
        stored[0].data.ptr, kind, stored[0].shape[1], beta.ctypes.data, out.data.ptr, kind, n,
        cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip
    expected = 2 * a.astype(np.float32) @ b.astype(np.float32) + 0.5 * c.astype(np.float32)
    np.testing.assert_allclose(out.get().astype(np.float32), expected, rtol=1e-6 if dtype is np.float32 else 2e-3)
