"""What a script changes between steps counts from the next one on; what fails in the middle leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.solvers import Solver, solver_types
from tests import engine_choice
from tests.engine_choice import ENGINES, engine, host
from tests.engines.cuda import emulator, stand_in_cupy, stand_in_engine

TEXT = """
base_lr: 0.05 lr_policy: "fixed" weight_decay: 0.01 random_seed: 3 max_iter: 99 snapshot_after_train: false
net_param {
  layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 5 dim: 5 } shape { dim: 4 }
    data_filler { type: "uniform" min: -1 max: 1 } data_filler { type: "constant" value: 2 } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
    convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
  layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
  layer { name: "ip" type: "InnerProduct" bottom: "norm" top: "ip"
    inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
}"""

WITH_MOMENTUM = ("SGD", "Nesterov", "AdaDelta", "Adam")
CHANGES: list[tuple[str, Any]] = [
    ("momentum", 0.3),
    ("momentum2", 0.7),
    ("delta", 0.5),
    ("rms_decay", 0.2),
    ("weight_decay", 0.9),
    ("regularization_type", "L1"),
    ("clip_gradients", 0.01),
    ("base_lr", 0.5),
    ("iter_size", 2),
]


@pytest.fixture(params=[*ENGINES, "CUDA"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also that of GPUs, which records the update after two steps."""
    if request.param != "CUDA":
        monkeypatch.setattr(engine_choice, "chosen", request.param)
        yield
        return
    if not emulator.has_compiler:
        pytest.skip("the emulator of kernels needs g++")
    stand_in_engine.install(monkeypatch)
    made = stand_in_engine.engine()
    monkeypatch.setattr(engine_choice, "chosen", lambda: made)
    yield
    stand_in_cupy.reset()


def make(kind: str, **options: Any) -> Solver:
    param = parse_text(TEXT, pb.SolverParameter)
    upgrade_solver(param, "solver")
    param.type = kind
    param.momentum = 0.9 if kind in WITH_MOMENTUM else 0
    return Solver(param, engine(), "counter", **options)


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("kind", solver_types())
def test_a_changed_number_counts_from_the_next_step_on(kind: str) -> None:
    """By the same change to a solver that has done nothing, but has all that the other has come to."""
    ran = make(kind)
    ran.step(4)
    for field, value in CHANGES:
        if field == "momentum" and kind not in WITH_MOMENTUM:
            continue
        fresh = make(kind)
        setattr(ran.param, field, value)
        fresh.param.CopyFrom(ran.param)
        fresh.iteration = ran.iteration
        fresh.context.random.set_state(ran.context.random.state())
        for theirs, ours in zip((fresh.data, *fresh.history), (ran.data, *ran.history), strict=True):
            theirs[...] = ours
        for solver in (ran, fresh):
            solver.step(1)
        np.testing.assert_array_equal(host(ran.data), host(fresh.data), f"{kind} with another {field}")


def test_the_norm_for_clipping_is_not_that_of_a_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sums differ from machine to machine, and so would the weights of workers on several."""
    monkeypatch.setattr(engine_choice, "chosen", "numpy")
    found, dot = [], np.dot
    for other in (False, True):
        solver = make("SGD")
        solver.param.clip_gradients = 0.01
        solver.net.forward()
        solver.net.backward()
        if other:
            for name in ("dot", "vdot", "inner"):
                monkeypatch.setattr(np, name, lambda a, b: dot(a, b) * np.float32(1.0001))
        solver.apply_update()
        found.append(host(solver.data))
    np.testing.assert_array_equal(*found)


class Twins:
    """Another worker that has twice as much of everything."""

    size, rank = 2, 0

    @staticmethod
    def sum_array(values: np.ndarray) -> np.ndarray:
        return 3 * values


def test_statistics_are_each_workers_own_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = make("SGD", sync_batch_norm=False)
    solver.step(2)
    monkeypatch.setattr(solver, "workers", Twins())
    before = [blob.data.copy() for blob in solver.net.layers[2].blobs]

    def fail(*_: Any) -> None:
        for blob, values in zip(solver.net.layers[2].blobs, before, strict=True):
            np.testing.assert_allclose(blob.data, 1.5 * values, rtol=1e-6, err_msg="the mean of both is there")
        raise OSError("no space left on device")

    monkeypatch.setattr("fcaffe.solvers.snapshot.carried.collect", fail)
    with pytest.raises(OSError, match="no space"):
        solver.snapshot()
    for blob, values in zip(solver.net.layers[2].blobs, before, strict=True):
        np.testing.assert_array_equal(blob.data, values)
