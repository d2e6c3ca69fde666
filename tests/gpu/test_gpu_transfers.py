"""Copies to and from a GPU that has much to do: the host runs ahead of it, and nothing is overwritten too early."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture
def busy(common_engine: Callable[[str], Any]) -> tuple[Any, Callable[[], None]]:
    """An engine, and a function that gives its stream some milliseconds of work."""
    engine = common_engine("fp32")
    matrix = engine.xp.ones((4096, 4096), np.float32)
    product = engine.xp.empty_like(matrix)

    def work() -> None:
        for _ in range(4):
            engine.xp.matmul(matrix, matrix, out=product)

    work()
    engine.synchronize()
    return engine, work


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_batches(busy: tuple[Any, Callable[[], None]], pinned: bool, dtype: Any) -> None:
    engine, work = busy
    shape = (64, 112, 112, 3)
    allocate = engine.host_array if pinned else lambda shape: np.empty(shape, np.float32)
    batches = deque(allocate(shape).transpose(0, 3, 1, 2) for _ in range(3))
    copies: deque[Any] = deque()
    target = engine.xp.zeros(shape, dtype).transpose(0, 3, 1, 2)
    lowest, highest = [], []
    for index in range(12):
        if len(copies) == len(batches):
            copies.popleft().wait()
        batches.rotate()
        batches[0][...] = index
        copies.append(engine.upload(batches[0], target))
        work()
        lowest.append(target.min())
        highest.append(target.max())
        target[...] = -1
    assert [float(value) for value in lowest] == [float(value) for value in highest] == list(range(12))


def test_numbers(busy: tuple[Any, Callable[[], None]]) -> None:
    engine, work = busy
    number = engine.xp.zeros(1, np.float64)
    number *= 2  # compiles it
    engine.write_small(number, np.zeros(1))
    engine.read_later(number).value()
    for _ in range(10):
        work()
    later = []
    for index in range(300):
        engine.write_small(number, np.array([index], np.float64))
        number *= 2
        later.append(engine.read_later(number))
        if index == 20:
            assert not later[0].done  # the host has not waited
    assert [pending.value() for pending in later] == [2 * index for index in range(300)]
