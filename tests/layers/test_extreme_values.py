"""Functions of single values and losses at extreme values, with errors relative to each value.

A result may be as far from the exact one as twice Caffe's own float32, and is NaN or infinite where Caffe's is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fcaffe.layers.activations import Activation
from fcaffe.layers.loss import LossLayer
from fcaffe.net import Net, registry
from tests.layers.examples_of_forks import LOSSES as LOSSES_OF_FORKS
from tests.layers.test_not_finite import input_layer, largest, smallest

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

MAGNITUDES = [0, 1e-30, 1e-9, 1e-4, 0.1, 0.5, 0.999, 1.3, 3, 5.5, 6, 7, 10, 13, 16, 17.5, 18, 25, 30, 36, 50, 80, 88.5]
MAGNITUDES += [90, 104, 300, 1e4, 1e15, 1e30, 3e38, np.inf]
X = np.array([sign * size for size in MAGNITUDES for sign in (-1, 1)] + [np.nan], np.float32)
GRADIENTS = [1, -2.5e-12, 3e20, 0, np.inf]
DIGITS = 4e-6


def sign(x: Any) -> Any:
    return (x > 0).astype(x.dtype) - (x < 0)


def sigmoid(x: Any) -> Any:
    """Caffe's: its literals are doubles."""
    wide = np.promote_types(x.dtype, np.float64)
    return (0.5 * np.tanh(0.5 * x.astype(wide)) + 0.5).astype(x.dtype)


def affine(x: Any, scale: float, shift: float) -> Any:
    return x * x.dtype.type(scale) + x.dtype.type(shift)


def leaky(slope: float) -> Callable[[Any], Any]:
    return lambda x: largest(x, 0) + np.float32(slope) * smallest(x, 0)


def leaky_slope(slope: float) -> Callable[[Any, Any], Any]:
    return lambda x, y: (x > 0) + np.float32(slope) * (x <= 0)


def bnll(x: Any) -> Any:
    wide = x.astype(np.promote_types(x.dtype, np.float64))
    return np.where(x > 0, wide + np.log1p(np.exp(-wide)), np.log1p(np.exp(wide))).astype(x.dtype)


def bnll_slope(x: Any, y: Any) -> Any:
    exponential = np.exp(smallest(x, 50))
    return exponential / (exponential + 1)


@dataclass
class Function:
    of: Callable[[Any], Any]
    slope: Callable[[Any, Any], Any] | None  # of x and the top
    text: str = ""


def types_of(base: type) -> set[str]:
    classes = {kind: registry.registered(kind) for kind in registry.layer_types()}
    return {kind for kind, made in classes.items() if isinstance(made, type) and issubclass(made, base)}


FUNCTIONS = {
    "AbsVal": Function(np.abs, lambda x, y: sign(x)),
    "BNLL": Function(bnll, bnll_slope),
    "Clip": Function(
        lambda x: largest(-2, smallest(x, 3)), lambda x, y: (x >= -2) & (x <= 3), "clip_param { min: -2 max: 3 }"
    ),
    "ELU": Function(
        lambda x: largest(x, 0) + np.float32(0.7) * np.expm1(smallest(x, 0)),
        lambda x, y: (x > 0) + (np.float32(0.7) + y) * (x <= 0),
        "elu_param { alpha: 0.7 }",
    ),
    "Exp": Function(lambda x: np.exp(affine(x, 0.5, 0)) * 4, lambda x, y: y * np.float32(0.5), ""),
    "Log": Function(
        lambda x: np.log(affine(x, 2, 0.25)), lambda x, y: 2 / affine(x, 2, 0.25), "log_param { scale: 2 shift: 0.25 }"
    ),
    "PReLU": Function(leaky(0.25), leaky_slope(0.25)),
    "Power": Function(
        lambda x: affine(x, -2, 1) ** 3,
        lambda x, y: y / affine(x, -2, 1) * -6,
        "power_param { power: 3 scale: -2 shift: 1 }",
    ),
    "ReLU": Function(leaky(0), leaky_slope(0)),
    "ReLU, leaky": Function(leaky(0.1), None, "relu_param { negative_slope: 0.1 }"),
    "ReLU, turned": Function(leaky(-0.5), None, "relu_param { negative_slope: -0.5 }"),
    "ReLU6": Function(
        lambda x: smallest(largest(x, 0), 6) + np.float32(0.1) * smallest(x, 0),
        lambda x, y: ((x > 0) & (x < 6)) + np.float32(0.1) * (x <= 0),
        "relu6_param { negative_slope: 0.1 }",
    ),
    "Sigmoid": Function(sigmoid, lambda x, y: y * (1 - y)),
    "Swish": Function(
        lambda x: x * sigmoid(2 * x),
        lambda x, y: 2 * y + sigmoid(2 * x) * (1 - 2 * y),
        "swish_param { beta: 2 }",
    ),
    "TanH": Function(np.tanh, lambda x, y: 1 - y * y),
    "Threshold": Function(lambda x: (x > 0).astype(x.dtype), None),
}
FUNCTIONS["Exp"].text = f"exp_param {{ scale: 0.5 shift: {np.log(4)} }}"


def assert_as_exact(found: Any, caffe: Any, exact: Any, what: str) -> None:
    found, caffe, exact = (np.asarray(each, np.longdouble) for each in (found, caffe, exact))
    regular = np.isfinite(caffe)
    np.testing.assert_array_equal(found[~regular], caffe[~regular], what)
    error = np.abs(found - exact)[regular]
    allowed = (DIGITS * np.abs(exact) + 2 * np.abs(caffe - exact) + 2e-38)[regular]
    far = ~(error <= allowed)
    assert not far.any(), f"{what}: {found[regular][far]}, exactly {exact[regular][far]}, Caffe {caffe[regular][far]}"


@pytest.mark.parametrize("times", [1, 64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, times: int, net_from: Callable[..., Net]) -> None:
    function, kind = FUNCTIONS[name], name.split(",")[0]
    for channels_last, top in itertools.product([False, True], "xy"):
        if top == "x" and not registry.registered(kind).traits.in_place:
            continue
        shape = (times, len(X) // 3, 3, 1) if channels_last else (times, len(X))
        x = np.resize(X, shape)
        text = f'layer {{ name: "f" type: "{kind}" bottom: "x" top: "{top}" {function.text} }}'
        net = net_from("force_backward: true " + input_layer(shape) + text)
        net.blob("x").data[...] = x
        net.forward()
        y = np.array(net.blob(top).data)
        with np.errstate(all="ignore"):
            assert_as_exact(y, function.of(x), function.of(x.astype(np.longdouble)), name)
            for dy in GRADIENTS if function.slope and top == "y" else []:
                net.blob("y").diff[...] = dy
                net.backward()
                wanted = np.float32(dy) * np.asarray(function.slope(x, y), np.float32)
                assert_as_exact(net.blob("x").diff, wanted, wanted, f"gradient of {name} for {dy}")


def test_every_function_has_its_formula() -> None:
    of_several_values = {"Dropout", "MVN", "Normalize", "Softmax"}
    assert types_of(Activation) - of_several_values == {name.split(",")[0] for name in FUNCTIONS}


@dataclass
class Loss:
    """The loss and its gradient by the first bottom, a row of (x, 1, -1). The second bottom holds a row of `target`."""

    of: Callable[[Any, Any], tuple[Any, Any]]
    targets: list[list[float]]
    bottoms: int = 2
    text: str = ""


def softmax_loss(x: Any, target: Any) -> tuple[Any, Any]:
    exponentials = np.exp(x - x.max())
    probability = exponentials / exponentials.sum()
    truth = np.arange(len(x)) == target[0]
    return -np.log(largest(probability[truth][0], np.float32(2**-126))), probability - truth


def sigmoid_loss(x: Any, target: Any) -> tuple[Any, Any]:
    positive = x >= 0
    losses = np.log1p(np.exp(x - 2 * x * positive)) - x * (target - positive)
    return losses.sum(), sigmoid(x) - target.astype(x.dtype)


def logarithmic_loss(x: Any, target: Any) -> tuple[Any, Any]:
    truth = np.arange(len(x)) == target[0]
    probability = largest(x, x.dtype.type(np.float32(1e-20)))
    return -np.log(probability[truth][0]), np.where(truth, -1 / probability, 0)


def hinge_loss(squared: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    def loss(x: Any, target: Any) -> tuple[Any, Any]:
        signs = np.where(np.arange(len(x)) == target[0], -1, 1).astype(x.dtype)
        margins = signs * x + 1
        violations = np.where(margins > 0, margins, 0)
        slopes = 2 * violations if squared else sign(violations)
        return (violations**2 if squared else violations).sum(), slopes * signs

    return loss


def euclidean_loss(x: Any, target: Any) -> tuple[Any, Any]:
    return ((x - target) ** 2).sum() / 2, x - target


def smooth_l1_loss(x: Any, target: Any) -> tuple[Any, Any]:
    d = x - target
    small = np.abs(d) < 1
    return np.where(small, d * d / 2, np.abs(d) - np.float32(0.5)).sum(), np.where(small, d, sign(d))


def l1_loss(x: Any, target: Any) -> tuple[Any, Any]:
    return np.abs(x - target).sum(), sign(x - target)


def contrastive_loss(legacy: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """For pairs that are not alike, of the margin 6."""

    def loss(x: Any, target: Any) -> tuple[Any, Any]:
        d = x - target
        square = (d * d).sum()
        gap = 6 - (square if legacy else np.sqrt(square))
        slope = 1 if legacy else gap / (np.sqrt(square) + np.float32(1e-4))
        return largest(gap, 0) ** (1 if legacy else 2) / 2, -slope * d if gap > 0 else 0 * target

    return loss


VALUES = [[0.25, 1, -1], [0, 0, 1]]
CLASSES = [[0], [1]]
LOSSES = {
    "ContrastiveLoss": Loss(contrastive_loss(False), VALUES, 3, "contrastive_loss_param { margin: 6 }"),
    "ContrastiveLoss, legacy": Loss(
        contrastive_loss(True), VALUES, 3, "contrastive_loss_param { margin: 6 legacy_version: true }"
    ),
    "EuclideanLoss": Loss(euclidean_loss, VALUES),
    "HingeLoss": Loss(hinge_loss(False), CLASSES),
    "HingeLoss, L2": Loss(hinge_loss(True), CLASSES, text="hinge_loss_param { norm: L2 }"),
    "L1Loss": Loss(l1_loss, VALUES),
    "MultinomialLogisticLoss": Loss(logarithmic_loss, CLASSES),
    "SigmoidCrossEntropyLoss": Loss(sigmoid_loss, [[0, 1, 0], [1, 0, 1], [0.25, 0.5, 1]]),
    "SmoothL1Loss": Loss(smooth_l1_loss, VALUES, text="loss_weight: 1"),
    "SmoothL1LossOHEM": Loss(smooth_l1_loss, VALUES, text="loss_weight: 1"),
    "SoftmaxWithLoss": Loss(softmax_loss, CLASSES),
    "SoftmaxWithLossOHEM": Loss(softmax_loss, CLASSES),
}


def test_every_loss_has_its_formula() -> None:
    with_parameters_or_boxes = {"CenterLoss", "DetectionLoss", "InfogainLoss", "MultiBoxLoss", "RegionLoss"}
    with_parameters_or_boxes |= {"TripletLoss", "Yolov3"}
    with_parameters_or_boxes |= set(LOSSES_OF_FORKS)  # test_fork_losses.py
    assert types_of(LossLayer) - with_parameters_or_boxes == {k.split(",")[0] for k in LOSSES}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, net_from: Callable[..., Net]) -> None:
    loss, kind = LOSSES[name], name.split(",")[0]
    inputs = [input_layer((1, 3)), input_layer((1, len(loss.targets[0])), "t"), input_layer((1, 1), "alike")]
    bottoms = " ".join(f'bottom: "{bottom}"' for bottom in ("x", "t", "alike")[: loss.bottoms])
    text = f'layer {{ name: "f" type: "{kind}" {bottoms} top: "y" {loss.text} }}'
    net = net_from("force_backward: true " + "".join(inputs[: loss.bottoms]) + text)
    for value, target in itertools.product(X, np.float32(loss.targets)):
        x = np.float32([value, 1, -1])
        net.blob("x").data[...], net.blob("t").data[...] = x, target
        found = net.forward()
        net.backward()
        with np.errstate(all="ignore"):
            caffe, exact = loss.of(x, target), loss.of(x.astype(np.longdouble), target)
            assert_as_exact(found, caffe[0], exact[0], f"{name} of {x} and {target}")
            gradient = net.blob("x").diff.reshape(-1)
            assert_as_exact(gradient, caffe[1], exact[1], f"gradient of {name} of {x} and {target}")
