"""`propagate_down: false`: the layers of Caffe that write the gradient of a bottom all the same, and those that do not.

The bottom is a Split's top, so that the Split adds what the layer has written to the gradient of another reader.
"""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.cases import each_of
from tests.layers.examples import EXAMPLES, Example
from tests.layers.test_contract import bottom_values

# Layer types of Caffe whose Backward_cpu does not ask for propagate_down, or whose bottom and top share memory.
IGNORE = {"BatchNorm", "Flatten", "Im2col", "LRN", "LSTM", "LSTMUnit", "MVN", "RNN", "Reshape", "Softmax"}
WITHOUT = {"Input", "DummyData", "Parameter", "Silence", "Split", "Python"}  # bottoms, gradients or a reader to add to

CASES = [
    (kind, example)
    for kind, examples in EXAMPLES.items()
    for example in examples
    if example.has_gradient and example.bottoms and () not in example.bottoms and kind not in WITHOUT
]


def gradients(kind: str, example: Example, down: bool, one: bool = False) -> list[np.ndarray]:
    """The gradient of a bias that each bottom is the sum with, if the layer is to propagate down or not."""
    net = pb.NetParameter()
    net.state.phase = pb.Phase.Value(example.phase)
    layer = pb.LayerParameter(name="it", type=kind)
    layer.MergeFrom(parse_text(example.text, pb.LayerParameter))
    layer.bottom.extend(["x0"] if one else [f"x{index}" for index in range(len(example.bottoms))])
    layer.top.extend(f"y{index}" for index in range(1 if one else example.tops))
    learning = [index for index in range(len(layer.bottom)) if index not in {*example.labels, *example.values}]
    for index, shape in enumerate(example.bottoms[: len(layer.bottom)]):
        name = f"in{index}" if index in learning else f"x{index}"
        net.layer.add(name=name, type="Input", top=[name]).input_param.shape.add(dim=shape)
        if index in learning:
            bias = net.layer.add(name=f"bias{index}", type="Bias", bottom=[name], top=[f"x{index}"])
            bias.bias_param.axis, bias.bias_param.num_axes = 0, -1
            reader = net.layer.add(name=f"reader{index}", type="Reduction", bottom=[f"x{index}"], loss_weight=[1])
            reader.top.append(f"r{index}")
    layer.propagate_down.extend(down and index in learning for index in range(len(layer.bottom)))
    net.layer.append(layer)
    if kind == "Reduction":
        net.layer[-1].loss_weight.append(1)
    for name in () if kind in ("Reduction", "Yolov3") or "Loss" in kind else layer.top:
        square = net.layer.add(name=f"square {name}", type="Reduction", bottom=[name], top=[f"s{name}"])
        square.loss_weight.append(1)
        square.reduction_param.operation = pb.ReductionParameter.SUMSQ
    made = Net(net, Context(NumpyEngine(), CaffeRandom(1), noise="counter"))
    for index, values in enumerate(bottom_values(example)[: len(layer.bottom)]):
        made.blob(f"in{index}" if index in learning else f"x{index}").data[...] = values
    made.forward()
    made.backward()
    return [node.layer.blobs[0].diff.copy() for node in made.nodes if node.name.startswith("bias")]


@each_of(CASES)
def test_propagate_down_false(kind: str, example: Example) -> None:
    ignores = kind in IGNORE and "WITHIN_CHANNEL" not in example.text
    asked, not_asked = gradients(kind, example, True), gradients(kind, example, False)
    for with_layer, without in zip(asked, not_asked, strict=True):
        assert np.array_equal(without, with_layer if ignores else np.ones_like(without))


@pytest.mark.parametrize(("kind", "text"), [("Concat", ""), ("Slice", "")])
def test_propagate_down_false_of_one_bottom_and_top(kind: str, text: str) -> None:
    """They share memory in Caffe."""
    example = Example(text, ((2, 4, 5, 3),))
    (asked,), (not_asked,) = (gradients(kind, example, down, one=True) for down in (True, False))
    assert np.array_equal(asked, not_asked)


@pytest.mark.parametrize("in_place", [False, True])
def test_batch_norm_writes_the_gradient_of_data(in_place: bool) -> None:
    """Since it has parameters that seem to learn, and does not ask whether its bottom wants a gradient."""
    top = "x" if in_place else "y"
    text = f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 4 dim: 3 dim: 2 dim: 2 }} }} }}
    layer {{ name: "norm" type: "BatchNorm" bottom: "x" top: "{top}" }}
    layer {{ name: "r" type: "Reduction" bottom: "{top}" top: "r" loss_weight: 1
      reduction_param {{ operation: ASUM }} }}"""
    found = []
    for force in "", "force_backward: true":
        param = parse_text(text + force, pb.NetParameter)
        net = Net(param, Context(NumpyEngine(), CaffeRandom(1)))
        net.blob("x").data[...] = np.random.default_rng(1).standard_normal((4, 3, 2, 2))
        net.forward()
        net.backward()
        found.append(net.blob("x").diff.copy())
    assert found[0].any() and np.array_equal(*found)
