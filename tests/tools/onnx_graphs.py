"""ONNX models of a few nodes, for the tests of their conversion to Caffe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fcaffe.onnx.check import differences, run_net, run_onnx
from fcaffe.onnx.files import deploy_net
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.convert import Converted, from_onnx
from fcaffe.onnx.reading.rules import FLOATS
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.target import read_target
from tests.tools.bvlc import check_net

Shapes = dict[str, tuple[int, ...]]


def model_of(
    body: str, inputs: Shapes, weights: Shapes | None = None, opset: int = 17, constants: dict[str, Any] | None = None
) -> Any:
    """A ModelProto of nodes in ONNX's text form, `y = Relu (x)`, with the outputs y, y2, ... that the nodes write.

    `weights` are random constants of these shapes, and `constants` others.
    """
    floats = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in inputs.items())
    text = f'<ir_version: 8, opset_import: ["": {opset}]> net ({floats}) => (float y) {{ {body} }}'
    model = onnx().parser.parse_model(text)
    del model.graph.output[:]
    for name in dict.fromkeys(name for node in model.graph.node for name in node.output if name.startswith("y")):
        model.graph.output.append(onnx().helper.make_tensor_value_info(name, onnx().TensorProto.FLOAT, None))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    random = np.random.default_rng(5)
    arrays = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in (weights or {}).items()}
    arrays.update({name: np.asarray(value) for name, value in (constants or {}).items()})
    for name, array in arrays.items():
        model.graph.initializer.append(onnx().numpy_helper.from_array(array, name))
    return model


def largest_difference(made: Converted, path: Path, seed: int = 1) -> float:
    """The largest difference of any output of a converted net from onnxruntime's, relative to the largest output."""
    net_param = pb.NetParameter()
    net_param.CopyFrom(made.net)
    net_param.state.phase = pb.TEST
    net, random = deploy_net(net_param, made.model, str(path)), np.random.default_rng(seed)
    inputs = {net.blob_names[i]: random.standard_normal(net.blobs[i].shape) for i in net.input_ids}
    for name, kind in made.types.items():
        if kind not in FLOATS:
            inputs[name] = random.integers(0, 3, inputs[name].shape)
    ours, theirs = run_net(net, inputs), run_onnx(path, inputs)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].shape == theirs[name].shape for name in ours)
    found = differences(ours, {name: array.astype(np.float32) for name, array in theirs.items()})
    return max(one.largest / max(one.magnitude, 1e-30) for one in found)


def converted(folder: Path, model: Any, target: str = "bvlc", **options: Any) -> tuple[Converted, Path]:
    """The net of a model for a target, and the model's file. BVLC Caffe can set up the net for its own."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    made = from_onnx(str(path), target=read_target(target), **options)
    if target == "bvlc":
        check_net(made.net, made.model)
    return made, path
