"""Copies to and from a device whose streams put off their work as far as events allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import cpu_engine
from fcaffe.engines.cuda.transfers import Transfers
from fcaffe.proto import caffe_pb2 as pb
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.stand_in_cupy import live, put
from tests.layers.test_data_layer import GOLDEN, data_layer

cupy = stand_in_cupy.cupy


class Device(Transfers):
    """A device that does nothing but copy; `seen` has what its work stream has found in targets."""

    def __init__(self) -> None:
        self.xp = cupy
        self.device = cupy.cuda.Device()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.seen: list[Any] = []

    def copy(self, x: Any, y: Any) -> None:
        put(lambda: np.copyto(live(y), live(x), casting="same_kind"), self.stream)

    def look(self, array: Any) -> None:
        """As a pass would that uses the array and, with time, overwrites all memory it may have."""
        put(lambda: self.seen.append(live(array).copy()), self.stream)
        put(lambda: live(array).fill(111), self.stream)

    def wait(self) -> None:
        """For the work stream, and for others as far as it waits for them."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        event.synchronize()


def device_array(*shape: int, dtype: Any = np.float32, channels_last: bool = False) -> Any:
    array = cupy.empty(shape, dtype)
    return cupy.empty((shape[0], *shape[2:], shape[1]), dtype).transpose(0, 3, 1, 2) if channels_last else array


@pytest.fixture
def device() -> Iterator[Device]:
    stand_in_cupy.put_off_all_work()
    made = Device()
    with made.stream:
        yield made
    stand_in_cupy.reset()


def pinned(device: Device, *shape: int) -> np.ndarray:
    number, channels, height, width = shape
    return device.host_array((number, height, width, channels)).transpose(0, 3, 1, 2)


def test_batches_are_written_anew_while_earlier_ones_are_under_way(device):
    target = device_array(2, 3, 4, 5, channels_last=True)
    batches = [pinned(device, 2, 3, 4, 5) for _ in range(3)]
    copies = [None] * 3
    for index in range(12):
        if copies[index % 3] is not None:
            copies[index % 3].wait()
        batches[index % 3][...] = index
        copies[index % 3] = device.upload(batches[index % 3], target)
        device.look(target)
    device.wait()
    assert [seen.min() for seen in device.seen] == [seen.max() for seen in device.seen] == list(range(12))


def test_other_memory_is_free_at_once(device):
    target = device_array(2, 3)
    values = np.empty((2, 3), np.float32)
    for index in range(9):
        values[...] = index
        assert device.upload(values, target).done
        device.look(target)
    values[...] = 99
    device.wait()
    assert [seen.max() for seen in device.seen] == list(range(9))


LAYOUTS = {
    "channels last": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "rows": lambda a: np.concatenate([a, a, a])[4:8],
    "reversed": lambda a: a[:, :, ::-1],
    "strided": lambda a: np.repeat(a, 2, axis=3)[..., ::2],
    "repeated": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "C order": lambda a: a,
    "doubles": lambda a: a.astype(np.float64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (4, 1, 5, 2), (4, 3, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_any_layout(device, layout, shape, dtype, is_pinned):
    values = np.random.default_rng(0).integers(-99, 99, shape).astype(np.float32)
    if is_pinned:
        memory = device.host_array(shape)
        memory[...] = values
        values = memory
    host = LAYOUTS[layout](values)
    for channels_last in (False, True):
        target = device_array(*shape, dtype=dtype, channels_last=channels_last)
        device.upload(host, target)
        device.look(target)
        device.wait()
        assert np.array_equal(device.seen.pop(), host)


def test_sizes_may_change(device):
    for size in (3, 1, 0, 200, 7, 300):
        target = device_array(size)
        device.upload(np.full(size, size, np.float32), target)
        device.look(target)
    device.wait()
    assert [seen.tolist() for seen in device.seen] == [[size] * size for size in (3, 1, 0, 200, 7, 300)]


def test_results_come_when_they_are_asked_for(device):
    loss = device_array(1)
    later = []
    for index in range(200):
        put(lambda index=index: live(loss).fill(index), device.stream)
        later.append(device.read_later(loss))
    assert not later[-1].done
    assert [pending.value() for pending in later] == list(range(200))
    assert later[0].done and isinstance(later[0].value(), float)


def test_numbers_are_written_in_order_however_far_the_host_is_ahead(device):
    counters = device_array(2, dtype=np.uint64)
    values = np.empty(2, np.uint64)
    for index in range(200):
        values[...] = index, 2**63 + index
        device.write_small(counters, values)
        device.look(counters)
    device.wait()
    assert [seen.tolist() for seen in device.seen] == [[k, 2**63 + k] for k in range(200)]


# --- the whole engine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_data_layer_neither_waits_nor_copies_pageable_memory(prefetch, cuda_engine):
    layers = [
        data_layer(
            GOLDEN / "interop" / "gray_lmdb",
            transform="crop_size: 5 mirror: true",
            phase=pb.TRAIN,
            data_param=f"backend: LMDB prefetch: {prefetch}",
            engine=engine,
        )
        for engine in (cuda_engine(), cpu_engine())
    ]
    (on_device, tops), (on_host, expected) = layers
    with stand_in_cupy.watched() as (waited, copied):
        for _ in range(6):
            on_device.forward([], tops)
            on_host.forward([], expected)
            for blob, right in zip(tops, expected, strict=True):
                assert np.array_equal(stand_in_cupy.host(blob.data), right.data)
    assert not waited and not copied
    on_device.close()
    on_host.close()
