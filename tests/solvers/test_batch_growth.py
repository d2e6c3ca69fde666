"""A batch that grows in place of a rate that drops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines.base import Pending
from fcaffe.errors import SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from fcaffe.solvers.batch_growth import GrowingBatch, Phase
from tests.solvers.training import NOISY, losses_of
from tests.watching import watch

COMMON = "base_lr: 0.1 max_iter: 1000 "


def growth(text: str, most: int = 1000) -> tuple[list[tuple[int, int, float]], int]:
    made = GrowingBatch(parse_text(COMMON + text, pb.SolverParameter), samples=3, largest=3 * most)
    return [(phase.first, phase.passes, phase.factor) for phase in made.phases], made.max_iter


@pytest.mark.parametrize(
    ("text", "most", "phases", "iterations"),
    [
        ('lr_policy: "step" gamma: 0.1 stepsize: 400', 1000, [(0, 1, 1), (400, 10, 1), (440, 100, 1)], 442),
        ('lr_policy: "step" gamma: 0.5 stepsize: 500 iter_size: 3', 1000, [(0, 3, 1), (500, 6, 1)], 750),
        ('lr_policy: "multistep" gamma: 0.5 stepvalue: 600 stepvalue: 800', 2, [(0, 1, 1), (600, 2, 1), (700, 2, 0.5)],
         800),
        ('lr_policy: "multistep" gamma: 0.4 stepvalue: 800', 9, [(0, 1, 1), (800, 2, 0.8)], 900),
        ('lr_policy: "multistep" gamma: 0.4 stepvalue: 1000', 9, [(0, 1, 1)], 1000),
    ],
)  # fmt: skip
def test_phases(text: str, most: int, phases: list[tuple[int, int, float]], iterations: int) -> None:
    """As many samples as without growth, and the rate for the batch always what the policy would have it."""
    found, last = growth(text, most)
    assert found == [(first, passes, pytest.approx(factor)) for first, passes, factor in phases]
    assert last == iterations


def test_a_rate_that_hardly_drops_but_often() -> None:
    phases, iterations = growth('lr_policy: "step" gamma: 0.5 stepsize: 1', 64)
    assert len(phases) == 1000 and 16 < iterations < 30
    assert all(passes * factor <= 64 for _, passes, factor in phases)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lr_policy: "poly" power: 1', "needs lr_policy 'step' or 'multistep', not 'poly'"),
        ('lr_policy: "step" stepsize: 10 gamma: 2', "by a gamma between 0 and 1, not 2"),
        ('lr_policy: "step" gamma: 0.1', "positive stepsize"),
        ('lr_policy: "step" gamma: 0.1 stepsize: 10 warmup_iter: 11', "iteration 10 would begin before warm-up ends"),
    ],
)
def test_what_cannot_grow(text: str, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        growth(text)


GROWING = NOISY.replace('"fixed"', '"multistep" gamma: 0.5 stepvalue: 4 stepvalue: 8')


@pytest.fixture
def growing(interop: Any, solver_from: Callable[..., Solver]) -> Any:
    """A solver with 2, then 4, then (of 8 and at most 7) 7 passes of 12 samples for an update."""

    def make(**fields: Any) -> Solver:
        return solver_from(GROWING, noise="counter", grow_batch=7 * 12, random_seed=5, **fields)

    return make


def test_rates_passes_and_records(growing: Any, capfd: pytest.CaptureFixture[str]) -> None:
    solver: Solver = growing()
    assert isinstance(solver.schedule, GrowingBatch)
    assert solver.schedule.phases == [Phase(0, 2, 1), Phase(4, 4, 1), Phase(6, 7, 0.875)]
    seen, passes, rates = [], [], []
    forward = solver.net.start_forward

    def counted(**how: Any) -> Pending:
        seen.append((solver.iteration, solver.context.first_sample))
        return forward(**how)

    solver.net.start_forward = counted  # type: ignore[method-assign]
    watch(solver, gradients_ready=lambda: passes.append(solver.passes))
    watch(solver, iteration_ends=lambda _, rate: rates.append(rate))
    solver.solve()
    assert solver.iteration == solver.schedule.max_iter == 8
    assert passes == [2] * 4 + [4] * 2 + [7] * 2
    assert rates == [np.float32(0.1)] * 6 + [pytest.approx(0.0875)] * 2
    assert seen == [(i, 12 * part) for i, n in enumerate(passes) for part in range(n)]
    log = capfd.readouterr().err
    assert "up to 84 samples: 8 iterations replace 12" in log
    assert "Effective batch: 48 samples an iteration from 4 on" in log
    assert "Effective batch: 84 samples an iteration from 6 on" in log


def test_a_grown_batch_is_one_large_batch(solver_from: Callable[..., Solver]) -> None:
    """From the same weights: a step of 2 grown to 8 passes is that of iter_size 8, dropout masks included."""
    text = """net_param {
      layer { name: "data" type: "DummyData" top: "data"
              dummy_data_param { data_filler { value: 1 } shape { dim: 4 dim: 5 } } }
      layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }
      layer { name: "ip" type: "InnerProduct" bottom: "drop" top: "ip"
              inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
      layer { name: "sum" type: "Power" bottom: "ip" top: "sum" power_param { power: 2 } }
      layer { name: "loss" type: "Reduction" bottom: "sum" top: "loss" loss_weight: 0.1 } }
      base_lr: 0.125 lr_policy: "step" stepsize: 1 gamma: 0.25 max_iter: 4 random_seed: 4 momentum: 0.5 """
    grown = solver_from(text + "iter_size: 2", noise="counter", grow_batch=32)
    large = solver_from(text, noise="counter", iter_size=8)
    large.param.lr_policy = "fixed"
    grown.step(1)
    large.data[...], large.history[0][...], large.iteration = grown.data, grown.history[0], 1
    grown.step(1)
    large.step(1)
    assert grown.passes == 8 and np.array_equal(grown.data, large.data)


@pytest.mark.parametrize("at", [3, 4, 5])
def test_resumed_before_at_and_after_a_growth(growing: Any, at: int) -> None:
    straight, resumed = growing(snapshot=at), growing()
    losses = losses_of(straight, 8)
    resumed.restore(f"{straight.param.snapshot_prefix}_iter_{at}.solverstate")
    assert losses_of(resumed, 8 - at) == losses[at:]
    assert np.array_equal(resumed.data, straight.data)


def test_too_large_already(interop: Any, solver_from: Callable[..., Solver]) -> None:
    with pytest.raises(SolverError, match="the batch of 24 samples cannot grow up to 23"):
        solver_from(GROWING, grow_batch=23)
