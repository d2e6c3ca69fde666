"""Compares a converted net with its ONNX file: the outputs, and if these differ, all blobs in order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fcaffe.input_files import asking
from fcaffe.net import Net
from fcaffe.tools.check_conversion import ALLOWED, RANDOM, read_inputs
from fcaffe.tools.onnx.check import Difference, differences, random_inputs, run_net, run_onnx
from fcaffe.tools.onnx.files import deploy_net
from fcaffe.tools.onnx.reading.convert import Converted


def differs(one: Difference) -> bool:
    """Whether a difference exceeds the float32 rounding of a deep net, relative to the largest value."""
    return not one.largest <= ALLOWED * one.magnitude


def check(path: str, converted: Converted, files: tuple[str, ...] = ()) -> tuple[list[Difference], str]:
    """Run the net in fcaffe and the ONNX file in onnxruntime on random values, and on files with inputs.

    Returns:
        The largest difference of each output over all inputs. The name of the first layer whose top differs, or "" if
        no output does.
    """
    net = deploy_net(converted.net, converted.model, path)
    inputs = [_random(net, converted, seed) for seed in range(RANDOM)]
    inputs += [read_inputs(name, list(inputs[0])) for name in files]
    worst: dict[str, Difference] = {}
    for given in inputs:
        with asking():
            theirs = run_onnx(path, given)
        for one in differences(theirs, run_net(net, given)):
            if one.output not in worst or not one.largest <= worst[one.output].largest:
                worst[one.output] = one
        if any(differs(one) for one in worst.values()):
            return list(worst.values()), _first_part(path, net, converted, given)
    return list(worst.values()), ""


def _random(net: Net, converted: Converted, seed: int) -> Mapping[str, np.ndarray]:
    """Random values for inputs; for integers the indices of a table's rows."""
    values = random_inputs(net, seed)
    rows = min((node.layer.param.embed_param.input_dim for node in net.nodes if node.layer.type == "Embed"), default=2)
    for name in converted.integers:
        values[name] = np.random.default_rng(seed).integers(0, rows, values[name].shape).astype(np.float32)
    return values


def _first_part(path: str, net: Net, converted: Converted, inputs: Mapping[str, np.ndarray]) -> str:
    run_net(net, inputs)
    theirs = run_onnx(path, inputs, list(converted.values.values()))
    for node in net.nodes:
        for index in node.top_ids:
            value = theirs.get(converted.values.get(net.blob_names[index], ""))
            ours = np.array(net.context.engine.to_numpy(net.blobs[index].data))
            if value is None or value.size != ours.size or node.layer.type == "Split":
                continue
            (one,) = differences({"": value.reshape(ours.shape).astype(np.float32)}, {"": ours})
            if differs(one):
                return node.name
    return net.nodes[-1].name
