"""Nets and solvers in any thread, for each thread has a current device and a current stream of its own in CuPy."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.net.script.host_arrays import host_views
from fcaffe.net.weights import load_weights
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.test_engine import solver_on, weights

THREADS = 3
DEVICE = 1
Call = Callable[[Callable[[], Any]], Any]


class Script:
    """Each operation may be the first one of its thread. All return what a script would read."""

    def __init__(self, engine: CudaEngine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.new()

    def new(self) -> None:
        self.solver = solver_on(self.engine, snapshot_prefix=str(self.folder / "state"))
        self.solver.net.forward()  # so that backward may come next

    def step(self) -> None:
        self.solver.step(3)  # of which the last one is recorded

    def forward(self) -> float:
        return self.solver.net.forward()

    def backward(self) -> None:
        self.solver.net.backward()

    def apply_update(self) -> None:
        self.solver.apply_update()

    def read(self) -> list[np.ndarray]:
        return [self.engine.to_numpy(self.solver.diff), *weights(self.solver)]

    def write(self) -> None:
        blob = self.solver.net.parameters.owned[0].blob
        blob.data[...] = self.engine.from_numpy(np.full(blob.shape, 0.01, np.float32))

    def look(self) -> list[np.ndarray]:
        views, blob = host_views(self.engine), self.solver.net.parameters.owned[0].blob
        views.data(blob)[...] *= 0.5
        with views.engine_at_work():
            return [views.data(blob).copy()]

    def look_at_a_new_array(self) -> np.ndarray:
        net = self.solver.net
        blob = net.blobs[random.Random(len(net.blobs)).randrange(len(net.blobs))]
        return host_views(self.engine).diff(blob).copy()

    def snapshot(self) -> None:
        self.solver.snapshot()

    def restore(self) -> None:
        state = self.solver.snapshot()
        self.solver.step(1)
        self.solver.restore(state)

    def load(self) -> None:
        model = self.solver.snapshot().replace("solverstate", "caffemodel")
        load_weights(self.solver.net, model)

    def upload(self) -> None:
        blob = self.solver.net.parameters.owned[0].blob
        self.engine.upload(np.full(blob.shape, 0.02, np.float32), blob.data).wait()

    def read_later(self) -> np.ndarray:
        blob = self.solver.net.parameters.owned[0].blob
        return self.engine.read_later(blob.data).value()

    def numbers(self) -> list[float]:
        return [self.engine.is_finite(self.solver.data), self.engine.gradient_scale(), *map(np.sum, self.state())]

    def state(self) -> list[np.ndarray]:
        return list(self.engine.state().values())

    def adjust(self) -> None:
        self.engine.restore_state({"scales": np.array([8, 0.125]), "steps": np.array([1, 0])})


OPERATIONS = [name for name, value in vars(Script).items() if callable(value) and name[0] != "_"]


def run(seed: int, calls: list[Call], folder: Path, **options: Any) -> list[Any]:
    """What the same operations return, each one called by one of `calls`."""
    dice = random.Random(seed)
    script = Script(CudaEngine(DEVICE, **options), folder)
    found = []
    for name in dice.choices(OPERATIONS, k=6):
        call = calls[dice.randrange(THREADS) % len(calls)]
        found.append(call(getattr(script, name)))
    return [*found, calls[0](script.read)]


@pytest.mark.parametrize("seed", range(16))
def test_any_thread_gets_the_results_of_one(
    seed: int, cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same bits, and nothing runs on another device or on the default stream."""
    monkeypatch.setattr(stand_in_cupy.runtime, "DEVICES", 2)
    options = {"math": ("fp32", "fp16")[seed % 2], "graphs": seed % 4 < 2}
    expected = run(seed, [lambda work: work()], tmp_path, **options)
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(THREADS)]
        stand_in_cupy.used.clear()
        found = run(seed, [lambda work, pool=pool: pool.submit(work).result() for pool in pools], tmp_path, **options)
    np.testing.assert_equal(found, expected)
    assert {device for device, _ in stand_in_cupy.used} == {DEVICE}
    assert 0 not in {stream for _, stream in stand_in_cupy.used}
