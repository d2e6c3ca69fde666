"""Caffe's float32 rates, iteration by iteration."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcaffe.cli.summary import _print_rates, rates
from fcaffe.errors import SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers.learning_rate import learning_rate, next_step, scale_rate
from tests.conftest import GOLDEN

f32 = np.float32
CURVES = json.loads((GOLDEN / "solvers" / "lr_policies.json").read_text())


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: f"{curve['policy']}-{curve['max_iter']}")
def test_rates_are_caffes_to_the_bit(curve: dict[str, Any]) -> None:
    param = parse_text(curve["solver"], pb.SolverParameter)
    step, found = 0, {}
    for iteration in range(max(curve["iter"]) + 1):
        step = next_step(param, iteration, step)
        found[iteration] = learning_rate(param, iteration, step)
    assert [found[i] for i in curve["iter"]] == curve["lr"]


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(SolverError, match="unknown lr_policy 'cosinus'; known ones: fixed, step"):
        learning_rate(parse_text('lr_policy: "cosinus" base_lr: 1', pb.SolverParameter), 0)


def test_yolos_stages_end_with_their_iteration() -> None:
    text = 'lr_policy: "multifixed" stagelr: [0.5, 2, 0.25] stageiter: [1, 4, 6]'
    param = parse_text(text, pb.SolverParameter)
    assert [learning_rate(param, iteration) for iteration in range(9)] == [0.5] * 2 + [2] * 3 + [0.25] * 4
    assert rates(param) == [] and rates(parse_text(f"{text} max_iter: 9", pb.SolverParameter)) == [
        (0, 0.5),
        (2, 2),
        (5, 0.25),
    ]
    for broken in (text.replace(", 6", ""), 'lr_policy: "multifixed"'):
        with pytest.raises(SolverError, match="needs stagelr, and a stageiter for each"):
            learning_rate(parse_text(broken, pb.SolverParameter), 0)
    scale_rate(param, "linear", 2)
    assert list(param.stagelr) == [1, 4, 0.5]


NUMBERS = st.floats(-4, 4, width=32) | st.sampled_from([0.0, 1.1, -1.0, 1e-30, 3e38])
POWERS = {
    "exp": lambda p, i: p.base_lr * np.power(p.gamma, i),
    "step": lambda p, i: p.base_lr * np.power(p.gamma, i // p.stepsize),
    "inv": lambda p, i: (
        f32(p.base_lr) * f32(np.power(np.float64(f32(1) + f32(p.gamma) * f32(i)), np.float64(-p.power)))
    ),
    "poly": lambda p, i: f32(p.base_lr) * f32(np.power(np.float64(f32(1) - f32(i) / f32(p.max_iter)), p.power)),
}


@given(
    st.sampled_from(sorted(POWERS)),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(1, 10**6),
    st.integers(0, 10**7) | st.integers(0, 9),
)
def test_rates_are_those_of_c_at_any_iteration(
    policy: str, base_lr: float, gamma: float, power: float, most: int, iteration: int
) -> None:
    """Infinite or NaN where C's are, never an error of Python's. Only beyond max_iter poly may have no rate."""
    param = pb.SolverParameter(
        lr_policy=policy, base_lr=base_lr, gamma=gamma, power=power, stepsize=most, max_iter=most
    )
    with np.errstate(all="ignore"):
        expected = f32(POWERS[policy](param, np.float64(iteration)))
    try:
        found = learning_rate(param, iteration)
    except SolverError as error:
        assert policy == "poly" and iteration > most and np.isnan(expected)
        assert "lr_policy 'poly'" in str(error) and f"max_iter: {most};" in str(error)
    else:
        np.testing.assert_allclose(f32(found), expected, rtol=1e-6)
    with contextlib.redirect_stdout(io.StringIO()) as table:
        _print_rates(param, rates(param))  # of `fcaffe solver`
    assert "Learning rate" in table.getvalue()
