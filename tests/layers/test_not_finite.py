"""NaN and infinite values: they go through every layer as they go through Caffe's C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0, 1, -1, 3e38, -3e38], np.float32)
SMALL, LARGE = (2, 4, 5, 3), (2, 32, 17, 19)  # a large array is computed by other routines than a small one


def largest(a: Any, b: Any) -> Any:
    """C++'s std::max."""
    return np.where(a < b, b, a)


def smallest(a: Any, b: Any) -> Any:
    """C++'s std::min."""
    return np.where(b < a, b, a)


def softmax(x: Any) -> Any:
    highest = x[:, :1]
    for index in range(x.shape[1]):
        highest = largest(highest, x[:, index : index + 1])
    values = np.exp(x - highest)
    return values / values.sum(axis=1, keepdims=True)


FUNCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # others are in test_extreme_values.py
    "Softmax": ("", softmax),
    "by NaN": ('type: "Scale" scale_param { filler { value: nan } }', lambda x: x * np.float32("nan")),
    "Dropout": ("dropout_param { dropout_ratio: 0 }", lambda x: x),
}


def filled(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of which some, at least one in each channel, are not finite."""
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    values.reshape(-1)[:: max(1, values.size // 24)][: 3 * len(SPECIAL)] = np.tile(SPECIAL, 3)[: values.size]
    return values


def input_layer(shape: tuple[int, ...], name: str = "x") -> str:
    dims = " ".join(f"dim: {n}" for n in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}'


@pytest.mark.parametrize("shape", [SMALL, LARGE, (3, 4000)], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, in_place: bool, shape: tuple[int, ...], net_from: Callable[..., Net]) -> None:
    text, function = FUNCTIONS[name]
    kind = "" if "type:" in text else f'type: "{name}"'
    top = "x" if in_place else "y"
    net = net_from(input_layer(shape) + f'layer {{ name: "f" {kind} bottom: "x" top: "{top}" {text} }}')
    x = filled(shape)
    net.blob("x").data[...] = x
    net.forward()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(net.blob(top).data, function(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_pooling(method: str, shape: tuple[int, ...], net_from: Callable[..., Net]) -> None:
    """A maximum passes over NaN, and over -inf too, since Caffe begins with -FLT_MAX; a mean does not."""
    net = net_from(
        input_layer(shape) + f'layer {{ name: "f" type: "Pooling" bottom: "x" top: "y" '
        f"pooling_param {{ pool: {method} kernel_size: 2 }} }}"
    )
    x = filled(shape)
    x[0, 1, :3, :3] = np.nan
    x[np.abs(x) == np.float32(3e38)] = 1e30  # or the order of a sum would count
    net.blob("x").data[...] = x
    net.forward()
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))
    lowest = np.finfo(np.float32).min
    with np.errstate(all="ignore"):
        wanted = (
            np.where(windows > lowest, windows, lowest).max(axis=(4, 5)) if method == "MAX" else windows.mean((4, 5))
        )
        np.testing.assert_allclose(net.blob("y").data, wanted, rtol=1e-5, atol=1e-6)


OTHER_VALUES = {
    'type: "LRN" lrn_param { local_size: 3 }': (0, 1, 2),  # channel 3 is divided by inf
    'type: "Eltwise" bottom: "z" eltwise_param { coeff: 0 coeff: 1 }': (1, 2),
    'type: "Scale" scale_param { filler { value: 0 } }': (1, 2),
}


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("layer", OTHER_VALUES)
def test_values_that_caffe_loses_or_spreads(layer: str, shape: tuple[int, ...], net_from: Callable[..., Net]) -> None:
    """The channels of a pixel that are NaN if NaN and inf are in channels 1 and 2: those of the window of LRN, and
    products by 0."""
    net = net_from(input_layer(shape) + input_layer(shape, "z") + f'layer {{ name: "f" bottom: "x" top: "y" {layer} }}')
    net.blob("x").data[...] = 1
    net.blob("x").data[0, 1:3, 1, 1] = np.nan, np.inf
    net.forward()
    assert [tuple(index) for index in np.argwhere(np.isnan(net.blob("y").data))] == [
        (0, channel, 1, 1) for channel in OTHER_VALUES[layer]
    ]


SCALE = """layer { name: "scale" type: "Scale" bottom: "%s" top: "n"
  scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 1.5 } bias_filler { type: "uniform" } } }"""
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "%s" top: "n" batch_norm_param { use_global_stats: %s } }'
RELU = 'layer { name: "relu" type: "ReLU" bottom: "%s" top: "%s" }'
CONV = """layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }"""
INNER = """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "c" inner_product_param { num_output: 512
  weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }"""
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "%s" bottom: "x" top: "s" }'
CHAINS = {
    "convolution": [CONV, RELU % ("c", "c")],
    "inner product": [INNER, RELU % ("c", "c")],
    "scale": [SCALE % "x", RELU % ("n", "n")],
    "batch norm": [NORM % ("x", "false"), RELU % ("n", "n")],
    "batch norm, scale": [NORM % ("x", "false"), SCALE % "n", RELU % ("n", "n")],
    "statistics, scale": [NORM % ("x", "true"), SCALE % "n", RELU % ("n", "n")],
    "convolution, statistics": [CONV, (NORM % ("c", "true")), SCALE % "n", RELU % ("n", "n")],
    "sum": [SCALE % "x", SUM % "n", RELU % ("s", "s")],
    "residual": [NORM % ("x", "false"), SCALE % "n", SUM % "n", RELU % ("s", "s")],
}


@pytest.mark.parametrize("inference", [False, True], ids=["training", "inference"])
@pytest.mark.parametrize("chain", CHAINS)
def test_relu_behind_others(chain: str, inference: bool) -> None:
    """In whole passes, in which layers are fused, recorded in the second pass and replayed from the third on, the
    layers' outputs are not finite where they are so one by one in NumPy, also if only later passes have such values."""
    shape = (8, 24, 14, 14)
    text = (
        input_layer(shape) + "\n".join(CHAINS[chain]) + 'layer { name: "out" type: "Reduction" bottom: "%s" top: "r" '
    )
    text = text % CHAINS[chain][-1].split('top: "')[1][0] + "reduction_param { axis: 1 } loss_weight: 1 }"
    param = parse_text(text, pb.NetParameter)
    param.state.phase = pb.TEST if inference else pb.TRAIN
    contexts = [
        Context(NumpyEngine(), CaffeRandom(1)),
        Context(engine(), CaffeRandom(1), inference=inference, whole_passes=True),
    ]
    plain, fused = (Net(param, context) for context in contexts)
    for number in range(5):
        x = filled(shape) if number != 1 else np.ones(shape, np.float32)
        x[:, 5:] = 0.5  # channels without such values
        for net in plain, fused:
            net.blob("x").data[...] = x
        losses = [net.forward() for net in (plain, fused)]
        assert [np.isnan(loss) for loss in losses] == [number != 1] * 2
        a, b = (net.blob("r").data for net in (plain, fused))
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
