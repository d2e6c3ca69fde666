"""Sums that are only enqueued on streams, as part of a CUDA graph."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.engines.cuda import emulator, stand_in_cupy
from tests.parallel.conftest import needs_mpi, run_ranks

if importlib.util.find_spec("mpi4py") is None:
    pytest.skip("needs the extra fcaffe[mpi]", allow_module_level=True)

from mpi4py import MPI

from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions.gpu.reduction import DeviceReduction

cupy = stand_in_cupy.cupy


class Doubling(DeviceReduction):
    """As if another rank had the same gradients."""

    host_waits = False

    def add_up(self, buffer: Any) -> None:
        with self.stream:
            buffer *= 2


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stand_in_cupy.install(monkeypatch)
    with cupy.cuda.Stream(non_blocking=True) as made:
        yield made
    stand_in_cupy.reset()


@pytest.mark.parametrize("overlap", [True, False])
def test_the_sums_join_the_capture_and_leave_it(stream: Any, overlap: bool) -> None:
    exchange = ReducingExchange(Doubling(MPI.COMM_SELF, cupy), 4 * 30, overlap)
    gradients, weights = exchange.allocate(cupy, 100), cupy.zeros(100, np.float32)

    def iteration() -> None:
        exchange.begin(gradients)
        for start in range(90, -1, -10):
            gradients[start : start + 10] = weights[start : start + 10] + 1
            exchange.ready(start)
        exchange.finish()
        weights[...] += gradients

    iteration()
    stream.begin_capture()
    iteration()
    graph = stream.end_capture()
    with stand_in_cupy.watched() as (waited, copied):
        graph.launch()
        graph.launch()
    assert not waited and not copied
    assert np.all(weights.get() == 26)  # each time w becomes w + 2 (w + 1)


@needs_mpi
@pytest.mark.skipif(not emulator.has_compiler, reason="the emulator of kernels needs g++")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_step_with_batch_norm_over_all_gpus_is_recorded(ranks: int) -> None:
    run_ranks(ranks, "graph_ranks.py")
