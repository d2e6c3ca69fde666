"""Missing fields of a solver are named in one line each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.errors import SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_solver
from fcaffe.solvers import Solver
from fcaffe.solvers.nets import missing_fields

MODELS = Path(__file__).parents[2] / "models"
GOLDEN = Path(__file__).parents[1] / "golden"

GOOD = 'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 3'

NET = """
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 5 dim: 5 } shape { dim: 4 dim: 3 } data_filler { type: "gaussian" } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 3 kernel_size: 1 } }
"""
LOSS = """
layer { name: "pool" type: "Pooling" bottom: "BOTTOM" top: "p" pooling_param { pool: AVE global_pooling: true } }
layer { name: "flat" type: "Flatten" bottom: "p" top: "f" }
layer { name: "loss" type: "EuclideanLoss" bottom: "f" bottom: "t" top: "loss" }
"""


def found(text: str) -> list[str]:
    return list(missing_fields(parse_text(text, pb.SolverParameter)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", None),
        ("base_lr: 0.01 -> base_lr: 0", None),
        ("base_lr: 0.01 ->", "base_lr is missing and counts as 0, so no weight changes"),
        ("fixed -> inv", 'lr_policy "inv" lacks gamma and power, which count as 0; give them'),
        ('"fixed" -> "inv" gamma: 0.1', 'lr_policy "inv" lacks power, which counts as 0; give it'),
        ('"fixed" -> "inv" gamma: 0.1 power: 0.75', None),
        ('"fixed" -> "step" stepsize: 10', 'lr_policy "step" lacks gamma'),
        ("fixed -> exp", 'lr_policy "exp" lacks gamma'),
        ('"fixed" -> "multistep" gamma: 0.1', 'lr_policy "multistep" lacks stepvalue'),
        ("fixed -> poly", 'lr_policy "poly" lacks power'),
        ('"fixed" -> "sigmoid" gamma: 0.1', 'lr_policy "sigmoid" lacks stepsize'),
        ("max_iter: 3 -> test_interval: 5", "test_interval is given without test_iter, so nothing is tested"),
    ],
)
def test_of_parameters(change: str, told: str | None) -> None:
    old, _, new = change.partition("->")
    lines = found(GOOD.replace(old.strip(), new.strip()) if change else GOOD)
    if told is None:
        assert lines == []
    else:
        assert len(lines) == 1 and lines[0].startswith(told)


def test_each_is_a_line_of_the_log_at_the_start(
    solver_from: Callable[..., Solver], capfd: pytest.CaptureFixture[str]
) -> None:
    text = 'lr_policy: "fixed" momentum: 2 snapshot_after_train: false net_param {' + NET + "}"
    solver = solver_from(text)
    built = warnings(capfd)
    assert [line.split()[0] for line in built[:1]] == ["base_lr"]
    assert built[1:] == [
        "the training net has no loss, so nothing is learned; add a layer such as SoftmaxWithLoss, or give a layer a "
        "loss_weight"
    ]
    solver.step(1)  # a script that takes steps needs no max_iter
    assert warnings(capfd) == []
    solver.solve()
    assert "max_iter is missing and counts as 0, so nothing is trained; give it, such as 10000" in warnings(capfd)


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return re.findall(r"^W.*?\] (.*)$", capfd.readouterr().err, flags=re.MULTILINE)


def test_an_empty_policy_and_missing_test_iter_are_errors(solver_from: Callable[..., Solver]) -> None:
    net = " net_param {" + NET + LOSS.replace("BOTTOM", "y") + "}"
    with pytest.raises(SolverError, match="lr_policy is missing; known ones: fixed, step"):
        solver_from("base_lr: 0.1" + net)
    with pytest.raises(SolverError, match="test_iter must be given once for each test net"):
        solver_from(GOOD + net + "test_net_param {" + NET + "} test_interval: 5")


@pytest.mark.parametrize("path", sorted(MODELS.glob("*/*solver*.prototxt")), ids=lambda path: f"{path.parent.name}")
def test_nothing_is_told_of_the_models(path: Path) -> None:
    param = read_solver(path)
    assert list(missing_fields(param)) == []
