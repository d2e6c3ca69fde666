"""Caffe's float32 rates, iteration by iteration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fcaffe.errors import SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers.learning_rate import learning_rate, next_step
from tests.conftest import GOLDEN

CURVES = json.loads((GOLDEN / "solvers" / "lr_policies.json").read_text())


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: f"{curve['policy']}-{curve['max_iter']}")
def test_rates_are_caffes_to_the_bit(curve: dict[str, Any]) -> None:
    param = parse_text(curve["solver"], pb.SolverParameter)
    step, rates = 0, {}
    for iteration in range(max(curve["iter"]) + 1):
        step = next_step(param, iteration, step)
        rates[iteration] = learning_rate(param, iteration, step)
    assert [rates[i] for i in curve["iter"]] == curve["lr"]


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(SolverError, match="unknown lr_policy 'cosine'; known ones: fixed, step"):
        learning_rate(parse_text('lr_policy: "cosine" base_lr: 1', pb.SolverParameter), 0)
