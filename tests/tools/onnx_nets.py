"""Nets for the tests of conversions: of one layer, from tests/layers/examples.py, or of a prototxt; weights random."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fcaffe.net import Net
from fcaffe.onnx.check import differences, random_inputs, run_net, run_onnx
from fcaffe.onnx.library import OPSET
from fcaffe.onnx.writing.export import to_onnx, write_onnx
from tests.conftest import make_net
from tests.layers.examples import Example


def input_layer(name: str, shape: tuple[int, ...]) -> str:
    dims = " ".join(f"dim: {dim}" for dim in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}'


def layer_text(kind: str, example: Example, in_place: bool = False) -> str:
    """The prototxt of a net with this one layer, which has the name "it"."""
    bottoms = [f"x{index}" for index in range(len(example.bottoms))]
    tops = ["x0"] if in_place else [f"y{index}" for index in range(example.tops)]
    ends = " ".join([f'bottom: "{name}"' for name in bottoms] + [f'top: "{name}"' for name in tops])
    inputs = [input_layer(name, shape) for name, shape in zip(bottoms, example.bottoms, strict=True)]
    return "\n".join([*inputs, f'layer {{ name: "it" type: "{kind}" {ends} {example.text} }}'])


def example_inputs(net: Net, example: Example) -> dict[str, np.ndarray]:
    inputs = random_inputs(net)
    for index, name in enumerate(inputs):
        if index in example.values:
            inputs[name] = np.resize(example.values[index], inputs[name].shape)
        elif index in example.labels:
            inputs[name] = np.random.default_rng(1).integers(0, example.labels[index], inputs[name].shape)
        elif example.positive:
            inputs[name] = np.abs(inputs[name]) + 0.1
    return inputs


def with_random_weights(net: Net, seed: int = 3) -> Net:
    """The net with weights that keep what flows through it at about one size; BatchNorm's statistics are positive."""
    random = np.random.default_rng(seed)
    for node in net.nodes:
        for index, blob in enumerate(node.layer.blobs):
            if blob in node.layer.running_statistics:
                blob.data[...] = random.uniform(0.5, 2, blob.shape)
            elif len(blob.shape) > 1:
                width = np.prod(blob.shape) / blob.shape[0]
                blob.data[...] = random.standard_normal(blob.shape) * (2 / width) ** 0.5
            else:
                blob.data[...] = random.uniform(0.5 if index == 0 else -0.5, 1, blob.shape)
    return net


def relative_difference(net: Net, inputs: dict[str, np.ndarray], folder: Path, opset: int = OPSET) -> float:
    """The largest difference between the net and its ONNX file, of values about 1 or, if larger, of the largest."""
    write_onnx(folder / "net.onnx", to_onnx(net, opset=opset))
    found = differences(run_net(net, inputs), run_onnx(folder / "net.onnx", inputs))
    return max(one.largest / max(1, one.magnitude) for one in found)


def example_net(kind: str, example: Example, in_place: bool = False) -> Net:
    return with_random_weights(make_net(layer_text(kind, example, in_place), "TEST"))
