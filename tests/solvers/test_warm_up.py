"""Warm-up as Intel's and NVIDIA's forks have it, and base_lr scaled for larger batches."""

from __future__ import annotations

from typing import Any

import pytest

from fcaffe.errors import SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers.learning_rate import learning_rate, next_step, scale_rate

POLICY = 'base_lr: 0.5 gamma: 0.5 max_iter: 100 lr_policy: "multistep" stepvalue: 2 stepvalue: 6 stepvalue: 90 '


def param(text: str) -> Any:
    return parse_text(POLICY + text, pb.SolverParameter)


def curve(solver: Any, iterations: int) -> list[float]:
    step, rates = 0, []
    for iteration in range(iterations):
        step = next_step(solver, iteration, step)
        rates.append(learning_rate(solver, iteration, step))
    return rates


@pytest.mark.parametrize(
    ("text", "rising"),
    [
        ("warmup_iter: 4", [0, 0.125, 0.25, 0.375]),
        ("warmup_iter: 4 warmup_start_lr: 0.25", [0.25, 0.3125, 0.375, 0.4375]),
        ("warmup_iter: 4 warmup_start_lr: 1", [1, 0.875, 0.75, 0.625]),
        ("rampup_interval: 4", [0, 0.03125, 0.125, 0.28125]),
        ("rampup_interval: 4 rampup_lr: 0.25", [0.25, 0.265625, 0.3125, 0.390625]),
    ],
)
def test_the_rate_rises_and_then_the_policy_has_it(text: str, rising: list[float]) -> None:
    """A step value that warm-up runs over is passed once it has ended, as in the forks."""
    assert curve(param(text), 9) == [*rising, 0.25, 0.25, 0.125, 0.125, 0.125]


def test_two_forms_at_once_are_refused() -> None:
    with pytest.raises(SolverError, match="warmup_iter and rampup_interval are both given"):
        learning_rate(param("warmup_iter: 4 rampup_interval: 4"), 0)


@pytest.mark.parametrize(
    ("scale", "factor", "text", "base", "start"),
    [
        ("linear", 4, "warmup_iter: 4", 2, 0.5),
        ("linear", 4, "warmup_iter: 4 warmup_start_lr: 0.125", 2, 0.125),
        ("sqrt", 4, "rampup_interval: 4", 1, 0.5),
        ("sqrt", 9, "", 1.5, 1.5),
    ],
)
def test_scaled_for_a_larger_batch(scale: str, factor: float, text: str, base: float, start: float) -> None:
    solver = param(text)
    scale_rate(solver, scale, factor)
    assert (solver.base_lr, learning_rate(solver, 0)) == (base, start)
