"""Normalisations folded into weights: the same outputs, fewer layers, and what has to stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model
from fcaffe.net.weights import to_model
from fcaffe.onnx.check import random_inputs, run_net
from fcaffe.onnx.files import deploy_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.tools.merge_bn import Merged, merge_bn
from tests.tools.onnx_nets import input_layer, with_random_weights

INPUT = input_layer("x", (2, 4, 7, 6))
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "c" top: "c" }'
SCALE = 'layer { name: "scale" type: "Scale" bottom: "c" top: "s" scale_param { bias_term: true } }'
BIAS = 'layer { name: "bias" type: "Bias" bottom: "s" top: "s" }'
WEIGHTED = {
    "Convolution": "convolution_param { num_output: 6 group: 2 kernel_size: 3 bias_term: false }",
    "Deconvolution": "convolution_param { num_output: 6 group: 2 kernel_size: 4 stride: 2 }",
    "InnerProduct": "inner_product_param { num_output: 6 }",
    "InnerProduct ": "inner_product_param { num_output: 6 transpose: true bias_term: false }",
}


def first(kind: str, more: str, name: str = "c") -> str:
    return f'layer {{ name: "{name}" type: "{kind.strip()}" bottom: "x" top: "{name}" {more} }}'


def merged(text: str) -> tuple[Merged, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What merging makes of a net with random weights, and the outputs before and after."""
    param = parsed(text)
    net = with_random_weights(deploy_net(param))
    inputs = random_inputs(net)
    result = merge_bn(param, to_model(net))
    result.net.state.phase = pb.TEST
    return result, run_net(net, inputs), run_net(deploy_net(result.net, result.model, "it"), inputs)


def parsed(text: str) -> Any:
    param = parse_text(text, pb.NetParameter)
    param.state.phase = pb.TEST
    return param


@pytest.mark.parametrize("kind", WEIGHTED)
def test_what_is_folded(kind: str) -> None:
    result, before, after = merged("\n".join([INPUT, first(kind, WEIGHTED[kind]), NORM, SCALE, BIAS]))
    assert result.folded == {"c": ["norm", "scale", "bias"]}
    assert [layer.name for layer in result.net.layer] == ["x", "c"] and before.keys() == after.keys() == {"s"}
    np.testing.assert_allclose(after["s"], before["s"], rtol=1e-4, atol=1e-4 * np.abs(before["s"]).max())


RELU = 'layer { name: "c" type: "ReLU" bottom: "x" top: "c" }'


@pytest.mark.parametrize(
    ("layers", "folded", "types"),
    [
        ([RELU, NORM, SCALE, BIAS], {"norm": ["scale", "bias"]}, ["Input", "ReLU", "Scale"]),
        ([RELU, SCALE.replace("bias_term: true", ""), BIAS], {"scale": ["bias"]}, ["Input", "ReLU", "Scale"]),
        ([RELU, NORM], {}, ["Input", "ReLU", "BatchNorm"]),
        (
            [RELU, NORM, SCALE, first("Convolution", WEIGHTED["Convolution"], "d").replace('"x"', '"s"')],
            {"norm": ["scale"]},
            ["Input", "ReLU", "Scale", "Convolution"],
        ),
    ],
    ids=["all three", "no statistics", "alone", "before weights"],
)
def test_where_no_weights_stand_before(layers: list[str], folded: dict[str, list[str]], types: list[str]) -> None:
    result, before, after = merged("\n".join([INPUT, *layers]))
    assert result.folded == folded and [layer.type for layer in result.net.layer] == types
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layers", "left"),
    [
        ([NORM.replace('top: "c"', 'top: "s"'), 'layer { name: "o" type: "ReLU" bottom: "c" top: "r" }'], ["norm"]),
        (['layer { name: "r" type: "ReLU" bottom: "c" top: "c" }', NORM], ["norm"]),
        ([NORM.replace("}", 'param { name: "shared" lr_mult: 0 } }'), SCALE], ["norm", "scale"]),
        ([NORM, SCALE.replace("scale_param {", "scale_param { axis: 2")], ["scale"]),
        ([NORM.replace('top: "c"', 'top: "n" loss_weight: 0.5'), SCALE.replace('"c"', '"n"')], ["norm", "scale"]),
        ([NORM, SCALE.replace("scale_param", "propagate_down: false scale_param")], ["scale"]),
    ],
    ids=["two readers", "behind a ReLU", "shared", "another axis", "a loss", "no gradient"],
)
def test_what_stays(layers: list[str], left: list[str]) -> None:
    result, before, after = merged("\n".join([INPUT, first("Convolution", WEIGHTED["Convolution"]), *layers]))
    names = [layer.name for layer in result.net.layer]
    assert [name for name in names if name in ("norm", "scale")] == left
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("phase", ["", "phase: TRAIN", "phase: TEST"])
@pytest.mark.parametrize("before", [first("Convolution", WEIGHTED["Convolution"]), RELU], ids=["weights", "ReLU"])
@pytest.mark.parametrize(
    "norm",
    [
        *[f'type: "BatchNorm" batch_norm_param {{ {p} }}' for p in ("", "use_global_stats: true", "scale_bias: true")],
        'type: "BatchNorm" batch_norm_param { use_global_stats: false }',
        *[f'type: "BN" bn_param {{ {p} }}' for p in ("", "frozen: true", "bn_mode: LEARN", "bn_mode: INFERENCE")],
    ],
)
def test_a_layer_is_folded_if_it_uses_running_statistics(norm: str, before: str, phase: str) -> None:
    """A layer's own phase holds in the net of phase TEST too."""
    text = "\n".join([INPUT, before, f'layer {{ name: "n" {norm} {phase} bottom: "c" top: "c" }}', SCALE])
    result, unfolded, after = merged(text)
    norm_layer = deploy_net(parsed(text)).layers[2]
    assert bool(result.folded) == getattr(norm_layer, "use_global_stats", "INFERENCE" in norm)
    np.testing.assert_allclose(after["s"], unfolded["s"], rtol=1e-4, atol=1e-4 * np.abs(unfolded["s"]).max())


@pytest.mark.parametrize(
    ("layers", "rates"),
    [
        ([first("Convolution", "param { lr_mult: 0 } " + WEIGHTED["Convolution"]), NORM, SCALE], [0, 0]),
        ([first("Deconvolution", "param { lr_mult: 3 } " + WEIGHTED["Deconvolution"]), NORM], [3]),
        ([first("Convolution", WEIGHTED["Convolution"]), NORM, SCALE], []),
        ([RELU, NORM, SCALE.replace("scale_param", "param { lr_mult: 0 } param { lr_mult: 4 } scale_param")], [0, 4]),
        ([RELU, SCALE.replace("scale_param", "param { lr_mult: 5 } scale_param"), BIAS], [5]),
    ],
    ids=["a new bias", "an old bias", "nothing said", "made a Scale", "a Scale"],
)
def test_rates_stay_with_what_learns(layers: list[str], rates: list[float]) -> None:
    result, _, _ = merged("\n".join([INPUT, *layers]))
    assert [spec.lr_mult for spec in result.net.layer[-1].param] == rates


def test_rules_of_layers_find_their_stages() -> None:
    convolution = first("Convolution", 'include { stage: "deploy" } ' + WEIGHTED["Convolution"])
    result, before, after = merged('state { stage: "deploy" }\n' + "\n".join([INPUT, convolution, NORM]))
    assert before.keys() == after.keys() == {"c"} and not result.model.param.HasField("state")


def test_a_model_without_weights() -> None:
    param = parsed("\n".join([INPUT, first("Convolution", WEIGHTED["Convolution"]), NORM]))
    with pytest.raises(SnapshotError, match=r'the model has no weights for layer "c"'):
        merge_bn(param, Model(pb.NetParameter(), []))


def test_a_net_whose_data_is_for_training_alone() -> None:
    """No layer is run, so none of them misses it."""
    kept = first("Convolution", WEIGHTED["Convolution"])
    model = to_model(with_random_weights(deploy_net(parsed("\n".join([INPUT, kept, NORM])))))
    data = 'layer { name: "data" type: "Data" top: "x" include { phase: TRAIN } data_param { source: "x" } }'
    assert merge_bn(parsed("\n".join([data, kept, NORM])), model).folded == {"c": ["norm"]}


OTHER = {
    "more outputs": ("num_output: 6", "num_output: 8"),
    "fewer outputs": ("num_output: 6", "num_output: 3"),
    "no outputs": ("num_output: 6", ""),
    "another kernel": ("kernel_size: 3", "kernel_h: 3 kernel_w: 1"),
    "a bias": (" bias_term: false", ""),
    "no bias": (" stride: 2", " stride: 2 bias_term: false"),
    "another type": ('"Convolution"', '"Deconvolution"'),
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [(kind, change) for kind in WEIGHTED for change in OTHER if OTHER[change][0] in first(kind, WEIGHTED[kind])],
)
def test_a_model_of_another_net(kind: str, change: str) -> None:
    text = "\n".join([INPUT, first(kind, WEIGHTED[kind]), NORM])
    changed = text.replace(*OTHER[change])
    model = to_model(with_random_weights(deploy_net(parsed(text))))
    with pytest.raises(SnapshotError, match=r'layer "c" .*which the net describes otherwise'):
        merge_bn(parsed(changed), model)
