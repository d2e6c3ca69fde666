from __future__ import annotations

from typing import Any

import pytest

from fcaffe.cli.summary import rates, solver_fields
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.solvers.learning_rate import learning_rate


def param(text: str) -> Any:
    made = parse_text(text, pb.SolverParameter)
    upgrade_solver(made, "solver")
    return made


def test_fields_that_are_given_upgraded_or_by_default() -> None:
    text = (
        'net: "a" base_lr: 0.01 test_iter: 3 test_iter: 4 solver_type: ADAM solver_mode: CPU train_state { level: 2 }'
    )
    fields = solver_fields(param(text))
    assert fields["net"] == "a" and fields["base_lr"] == 0.01 and fields["test_iter"] == [3, 4]
    assert fields["type"] == "Adam" and "solver_type" not in fields
    assert fields["solver_mode"] == "CPU" and fields["train_state"] == {"level": 2}
    assert fields["momentum"] == 0 and fields["momentum2"] == 0.999 and fields["clip_gradients"] == -1
    assert fields["snapshot_format"] == "BINARYPROTO" and fields["snapshot_after_train"] is True
    assert fields["regularization_type"] == "L2" and fields["average_loss"] == 1
    assert "train_net" not in fields and "net_param" not in fields and "stepvalue" not in fields


def test_rates_where_they_change() -> None:
    common = "base_lr: 1 gamma: 0.5 max_iter: 100 "
    assert rates(param(common + 'lr_policy: "fixed"')) == [(0, 1)]
    assert rates(param(common + 'lr_policy: "step" stepsize: 40')) == [(0, 1), (40, 0.5), (80, 0.25)]
    text = common + 'lr_policy: "multistep" stepvalue: 10 stepvalue: 10 stepvalue: 90 stepvalue: 200'
    assert rates(param(text)) == [(0, 1), (10, 0.5), (11, 0.25), (90, 0.125)]


@pytest.mark.parametrize("text", ['lr_policy: "poly" power: 1', 'lr_policy: "step" gamma: 0.9 stepsize: 1'])
def test_rates_that_change_often_are_sampled(text: str) -> None:
    solver = param("base_lr: 1 max_iter: 1600 " + text)
    curve = rates(solver)
    assert [place for place, _ in curve] == [*range(0, 1600, 100), 1599]
    assert all(rate == learning_rate(solver, place) for place, rate in curve)


def test_rates_of_no_iterations() -> None:
    assert rates(param('base_lr: 1 lr_policy: "poly"')) == []
