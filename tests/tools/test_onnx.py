"""Nets as ONNX files, which onnxruntime runs: every layer type, pooling of all sizes, and the nets under models/."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import plugins
from fcaffe.errors import FcaffeError, LayerError
from fcaffe.net import layer_types, registry
from fcaffe.onnx.check import random_inputs
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.forks import has_effect
from tests.cases import case, each_of
from tests.conftest import make_net
from tests.layers.examples import EXAMPLES, Example
from tests.net.random_nets import RandomNet
from tests.tools.onnx_nets import (
    example_inputs,
    example_net,
    input_layer,
    layer_text,
    relative_difference,
    with_random_weights,
)

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fcaffe.onnx.library import OPSETS
from fcaffe.onnx.writing.export import to_onnx
from fcaffe.onnx.writing.graph import _writers
from fcaffe.onnx.writing.refused import REASONS as REFUSED
from fcaffe.onnx.writing.refused import check_types

plugins.load_own("onnx")  # what is refused of forks
TOLERANCE = 1e-4
EACH = [
    (kind, example, in_place)
    for kind, examples in EXAMPLES.items()
    if kind not in (*REFUSED, "Silence")  # which leaves nothing to compare
    for example in examples
    if "sample_weights_test" not in example.text
    if not ((kind == "Lstm" and len(example.bottoms) > 1) or (kind == "ROIAlign" and "roi_pooling" in example.text))
    for in_place in ([False, True] if example.in_place else [False])
]


def test_every_layer_type_is_written_or_refused() -> None:
    own = {name for name in layer_types() if registry.registered(name).__module__.startswith("fcaffe.")}
    assert {*_writers, "Input"} >= own


@each_of((*case, opset) for case in EACH for opset in (OPSETS[0], OPSETS[-1]))
def test_layers(kind: str, example: Example, in_place: bool, opset: int, tmp_path: Path) -> None:
    if kind == "DummyData":
        example = replace(example, text="dummy_data_param { shape { dim: 2 dim: 3 } data_filler { value: 3 } }")
    net = example_net(kind, example, in_place)
    assert relative_difference(net, example_inputs(net, example), tmp_path, opset) <= TOLERANCE


def changes(message: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a message with one value each, and other values."""
    for field in filter(has_effect, message.DESCRIPTOR.fields):
        value = getattr(message, field.name)
        if field.enum_type is not None:
            yield from ((field.name, one.number) for one in field.enum_type.values if one.number != value)
        elif isinstance(value, bool):
            yield field.name, not value
        elif isinstance(value, (int, float)):
            yield from ((field.name, other) for other in (value + 1, 0, -1))


@each_of((kind, example) for kind, example, _ in EACH if example in EXAMPLES[kind][:1] and kind != "DummyData")
def test_every_field_counts(kind: str, example: Example, tmp_path: Path) -> None:
    """A layer with another value in a field has the same values in ONNX, unless ONNX cannot express it."""
    param = parse_text(layer_text(kind, example), pb.NetParameter)
    owns = [field.name for field, _ in param.layer[-1].ListFields() if field.name.endswith("_param")]
    for own in owns or [f"{kind.lower()}_param"]:
        for name, value in changes(getattr(param.layer[-1], own, pb.BlobShape())):
            changed = pb.NetParameter()
            changed.CopyFrom(param)
            try:
                setattr(getattr(changed.layer[-1], own), name, value)
                net = with_random_weights(make_net(str(changed), "TEST"))
            except (FcaffeError, ValueError):  # Caffe has no such layer
                continue
            with case(own, name, value):
                try:
                    assert relative_difference(net, example_inputs(net, example), tmp_path) <= TOLERANCE
                except LayerError as refusal:
                    assert "fcaffe knows no operators for" not in str(refusal)


def test_a_field_that_is_not_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_writers, "Reduction", lambda step: step.x if step.param.reduction_param.axis else "")

    example = Example("reduction_param { operation: SUMSQ axis: 2 coeff: 1 }", ((2, 3, 4, 5),))
    net = make_net(layer_text("Reduction", example), "TEST")
    with pytest.raises(LayerError, match=r'layer "it" .* no operators for reduction_param.operation; leave out'):
        to_onnx(net)


@pytest.mark.parametrize("kind", sorted(REFUSED.keys() & EXAMPLES.keys()))
def test_what_is_refused(kind: str) -> None:
    net = make_net(layer_text(kind, EXAMPLES[kind][0]), "TEST")
    refusal = rf'layer "it" \({kind}\): cannot be written in ONNX: '
    with pytest.raises(LayerError, match=refusal):
        to_onnx(net)
    with pytest.raises(LayerError, match=refusal):
        check_types(parse_text(layer_text(kind, EXAMPLES[kind][0]), pb.NetParameter))


def test_random_nets(tmp_path: Path) -> None:
    """With branches, layers in place and along any axis; without the layers of training, and without user code."""
    found = 0
    for seed in range(24):
        param = parse_text(RandomNet(seed, fed=True).text, pb.NetParameter)
        if any(layer.type == "Python" for layer in param.layer):
            continue
        kept = [one for one in param.layer if one.type not in (*REFUSED, "Silence") and not one.loss_weight]
        del param.layer[:]
        param.layer.extend(kept)
        net, opset = with_random_weights(make_net(str(param), "TEST"), seed), OPSETS[seed % len(OPSETS)]
        inputs = random_inputs(net, seed)
        for name in inputs.keys() - {"x"}:
            inputs[name] = np.floor(abs(inputs[name])).clip(0, 2)  # indices
        with case(seed):
            assert relative_difference(net, inputs, tmp_path, opset) <= TOLERANCE
        found += 1
    assert found > 12


def test_pooling_of_every_size(tmp_path: Path) -> None:
    """Windows that end within the image, in the padding, beyond it, or begin there; one net for each kind of window."""
    sizes = [(5, 8), (6, 7), (9, 9)]
    for method, kernel, stride, pad in itertools.product(["MAX", "AVE"], [1, 2, 3], [1, 2, 3, 4], [0, 1, 2]):
        if pad >= kernel:
            continue
        layers = []
        for number, size in enumerate(sizes):
            layers += [
                input_layer(f"x{number}", (2, 2, *size)),
                f'layer {{ name: "pool{number}" type: "Pooling" bottom: "x{number}" top: "y{number}" pooling_param {{ '
                f"pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad} }} }}",
            ]
        net = make_net("\n".join(layers), "TEST")
        inputs = {
            f"x{number}": np.random.default_rng(4).normal(size=(2, 2, *size)) for number, size in enumerate(sizes)
        }
        assert relative_difference(net, inputs, tmp_path) <= TOLERANCE, (method, kernel, stride, pad)


def test_layers_of_one_name_keep_their_own_weights(tmp_path: Path) -> None:
    layer = 'layer {{ name: "ip" type: "InnerProduct" bottom: "{}" top: "{}" inner_product_param {{ num_output: 4 }} }}'
    text = "\n".join([input_layer("x", (2, 4)), layer.format("x", "y"), layer.format("y", "z")])
    net = with_random_weights(make_net(text, "TEST"))
    assert relative_difference(net, random_inputs(net), tmp_path) <= TOLERANCE
