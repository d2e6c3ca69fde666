"""What makes no sense is told in one line that names it, and what does is not told of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.errors import SolverError
from fcaffe.net.filter import filter_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, read_solver
from fcaffe.solvers import Solver, nonsense

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
    return nonsense.of_parameters(parse_text(text, pb.SolverParameter))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", None),
        ("base_lr: 0.01 -> base_lr: 0", None),
        ("base_lr: 0.01 ->", "base_lr is missing and counts as 0, so no weight changes"),
        ("base_lr: 0.01 -> base_lr: -0.5", "base_lr is -0.5: a negative rate makes the loss grow"),
        ("base_lr: 0.01 -> base_lr: 100", "base_lr is 100, with which hardly any net trains"),
        ("base_lr: 0.01 -> base_lr: nan", "base_lr is nan, "),
        ("base_lr: 0.01 -> base_lr: 29 local_lr_auto: true", None),
        ("momentum: 0.9 -> momentum: 1", "momentum is 1, and makes sense from 0 to less than 1 only"),
        ("momentum: 0.9 -> momentum: -0.1", "momentum is -0.1, "),
        ('momentum: 0.9 -> type: "Adam" momentum: 0.9 momentum2: 1.5', "momentum2 is 1.5, "),
        ("max_iter: 3 -> weight_decay: -0.1", "weight_decay is -0.1, with which weights grow"),
        ("fixed -> inv", 'lr_policy "inv" lacks gamma and power, which count as 0; give them'),
        ('"fixed" -> "inv" gamma: 0.1', 'lr_policy "inv" lacks power, which counts as 0; give it'),
        ('"fixed" -> "inv" gamma: 0.1 power: 0.75', None),
        ('"fixed" -> "step" stepsize: 10', 'lr_policy "step" lacks gamma'),
        ("fixed -> exp", 'lr_policy "exp" lacks gamma'),
        ('"fixed" -> "multistep" gamma: 0.1', 'lr_policy "multistep" lacks stepvalue'),
        ('"fixed" -> "multistep" gamma: 0.1 stepvalue: 5 stepvalue: 5', "stepvalue has 5, 5, of which each must be"),
        ('"fixed" -> "multistep" gamma: 0.1 stepvalue: 5 stepvalue: 6', None),
        ("fixed -> poly", 'lr_policy "poly" lacks power'),
        ('"fixed" -> "sigmoid" gamma: 0.1', 'lr_policy "sigmoid" lacks stepsize'),
        ("max_iter: 3 -> test_interval: 5", "test_interval is given without test_iter, so nothing is tested"),
        ("max_iter: 3 -> test_interval: 5 test_iter: 0", "test_iter is 0: a test of no batch has no result"),
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
    assert [line.split()[0] for line in built[:2]] == ["base_lr", "momentum"]
    assert built[2:] == [
        "the training net has no loss, so nothing is learned; add a layer such as SoftmaxWithLoss, or give a layer a "
        "loss_weight"
    ]
    solver.step(1)  # a script that takes steps needs no max_iter
    assert warnings(capfd) == []
    solver.solve()
    assert "max_iter is missing and counts as 0, so nothing is trained; give it, such as 10000" in warnings(capfd)


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return re.findall(r"^W.*?\] (.*)$", capfd.readouterr().err, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("layer", "wrong"),
    [
        ('type: "LRN"', True),
        ('type: "Power" power_param { power: 2 }', True),
        ('type: "Power" power_param { power: -1 shift: 3 }', True),
        ('type: "Power" power_param { scale: 2 shift: 1 }', False),
        ('type: "Log" log_param { shift: 9 }', True),
        ('type: "BNLL"', True),
        ('type: "Clip" clip_param { min: 0 max: 1 }', True),
        ('type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 }', True),
        ('type: "Eltwise" bottom: "x" eltwise_param { operation: PROD }', True),
        ('type: "Exp"', False),
        ('type: "ReLU"', False),
        ('type: "PReLU"', False),
        ('type: "ELU"', False),
        ('type: "Swish"', False),
        ('type: "MVN"', False),
        ('type: "BatchNorm"', False),
        ('type: "Scale"', False),
        ('type: "Bias"', False),
        ('type: "Dropout"', False),
        ('type: "Sigmoid"', False),
        ('type: "Softmax"', False),
    ],
)
def test_a_layer_in_place_that_overwrites_what_its_gradient_needs(
    layer: str, wrong: bool, solver_from: Callable[..., Solver]
) -> None:
    inner = NET + f'layer {{ name: "it" bottom: "y" top: "TOP" {layer} }}' + LOSS.replace("BOTTOM", "TOP")
    for top in ("y", "z"):
        net = solver_from(GOOD + " net_param {" + inner.replace("TOP", top) + "}").net
        kind = layer.split('"')[1]
        expected = [f'layer "it" ({kind}) works in place on "y"'] if wrong and top == "y" else []
        assert [line.split(";")[0] for line in nonsense.of_net(net)] == expected


def test_where_no_gradient_goes_through_nothing_is_wrong(solver_from: Callable[..., Solver]) -> None:
    before = 'layer { name: "it" type: "Log" bottom: "x" top: "x" log_param { shift: 9 } } layer { name: "conv"'
    text = NET.replace('layer { name: "conv"', before)
    net = solver_from(GOOD + " net_param {" + text + LOSS.replace("BOTTOM", "y") + "}").net
    assert nonsense.of_net(net) == []


def test_an_empty_policy_and_missing_test_iter_are_errors(solver_from: Callable[..., Solver]) -> None:
    net = " net_param {" + NET + LOSS.replace("BOTTOM", "y") + "}"
    with pytest.raises(SolverError, match="lr_policy is missing; known ones: fixed, step"):
        solver_from("base_lr: 0.1" + net)
    with pytest.raises(SolverError, match="test_iter must be given once for each test net"):
        solver_from(GOOD + net + "test_net_param {" + NET + "} test_interval: 5")


@pytest.mark.parametrize("path", sorted(MODELS.glob("*/*solver*.prototxt")), ids=lambda path: f"{path.parent.name}")
def test_nothing_is_told_of_the_models(path: Path) -> None:
    param = read_solver(path)
    assert nonsense.of_parameters(param) == [] == nonsense.of_solving(param)
    net = read_net(path.parents[2] / param.net)
    net.state.phase = pb.TRAIN
    assert any("Loss" in layer.type for layer in filter_net(net).layer)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/solver*.prototxt")), ids=lambda path: path.stem)
def test_nothing_is_told_of_what_caffe_has_run(path: Path) -> None:
    assert nonsense.of_parameters(read_solver(path)) == []
