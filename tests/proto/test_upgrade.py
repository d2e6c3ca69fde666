"""Older notations, against what BVLC Caffe's upgrade programs made of them and what they logged."""

import json
import re
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, write_binary
from fcaffe.proto.binary import read_binary
from fcaffe.proto.text import read_text
from fcaffe.proto.upgrade import upgrade_net, upgrade_solver
from fcaffe.proto.upgrade_v0 import LAYER_TYPES as V0_TYPES
from fcaffe.proto.upgrade_v1 import LAYER_TYPES as V1_TYPES

GOLDEN = Path(__file__).parents[1] / "golden/interop"
CASES = json.loads((GOLDEN / "old_formats.json").read_text())
TYPES = json.loads((GOLDEN / "old_types.json").read_text())
OF_THE_PROGRAM = ("File already in latest", "Wrote upgraded")  # not of the upgrade itself


def logged(capsys):
    lines = capsys.readouterr().err.splitlines()
    return [re.fullmatch(r"([IWE])\d{4} .* upgrade_proto\.cpp:\d+\] (.*)", line).groups() for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_fields_and_log_lines_are_caffes(name, capsys):
    message, upgrade = pb.NetParameter, upgrade_net
    if name.startswith("old_solver"):
        message, upgrade = pb.SolverParameter, upgrade_solver
    param = read_text(GOLDEN / name, message)
    upgrade(param, "old.prototxt")
    assert param == ParseDict(CASES[name]["upgraded"], message())
    lines = [line for line in CASES[name]["log"] if not line.startswith(OF_THE_PROGRAM)]
    assert logged(capsys) == [("W" if line.startswith("Note") else "I", line) for line in lines]
    upgrade(param, "old.prototxt")  # nothing is left to do, but Caffe looks at BatchNorm every time
    assert param == ParseDict(CASES[name]["upgraded"], message())


def test_type_names_are_caffes():
    v1 = {name: case["type"] for name, case in TYPES["V1 layers.type"].items()}
    forks = {"BN": "BN", "CROP": "Crop", "INTERP": "Interp", "CONVOLUTION3D": "Convolution", "POOLING3D": "Pooling"}
    assert v1 | {"NONE": ""} | forks == V1_TYPES
    assert set(V1_TYPES) == set(pb.V1LayerParameter.LayerType.keys())
    assert {name: V1_TYPES[v1_name] for name, v1_name in V0_TYPES.items()} == TYPES["V0 layers.layer.type"]


def test_a_v1_model(tmp_path, capsys):
    net = read_binary(GOLDEN / "v1.caffemodel", pb.NetParameter)
    upgrade_net(net, "v1.caffemodel")
    assert logged(capsys)[-1] == ("I", "Successfully upgraded file specified using deprecated V1LayerParameter")
    write_binary(tmp_path / "x", net)
    assert (tmp_path / "x").read_bytes() == (GOLDEN / "v1_upgraded.caffemodel").read_bytes()


def test_a_model_may_name_its_inputs_without_a_shape():
    net = parse_text('input: "data" layer { name: "a" }', pb.NetParameter)
    upgrade_net(net, "x")
    assert net == parse_text('layer { name: "a" }', pb.NetParameter)


def test_nets_inside_a_solver_are_upgraded(capsys):
    solver = parse_text('net_param { layers { name: "r" type: RELU } }', pb.SolverParameter)
    upgrade_solver(solver, "x")
    assert solver.net_param.layer[0].type == "ReLU"


def test_a_v0_field_of_another_type_is_left_out_and_logged(capsys):
    net = parse_text('layers { layer { name: "p" type: "pool" num_output: 3 stride: 2 } }', pb.NetParameter)
    upgrade_net(net, "x")
    assert net == parse_text('layer { name: "p" type: "Pooling" pooling_param { stride: 2 } }', pb.NetParameter)
    errors = [line for level, line in logged(capsys) if level == "E"]
    assert errors[0] == "Unknown parameter num_output for layer type pool"
    assert errors[1].endswith("continuing anyway.")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("old_v0", "old_v1"))])
def test_layer_beside_layers_is_refused(name):
    """Caffe drops neither: "Refusing to upgrade inconsistent NetParameter"."""
    param = read_text(GOLDEN / name, pb.NetParameter)
    assert param.layers
    param.layer.add(name="new", type="ReLU")
    with pytest.raises(ProtoError, match=r"^old\.prototxt: Refusing to upgrade inconsistent NetParameter\. .*'layers'"):
        upgrade_net(param, "old.prototxt")
    with pytest.raises(ProtoError, match=r"^old_solver\.prototxt: Refusing to upgrade"):
        upgrade_solver(pb.SolverParameter(test_net_param=[param]), "old_solver.prototxt")


REFUSED = {
    'layers { layer { name: "a" type: "xyz" } }': 'layer "a": unknown V0 layer type "xyz"',
    'layers { layer { name: "a" type: "relu" } bottom: "b" }': 'layer "a": unknown bottom "b"',
    'input: "x" layers { layer { name: "p" type: "padding" pad: 1 } bottom: "x" top: "y" }'
    ' layers { layer { name: "r" type: "relu" } bottom: "y" }': 'layer "r" of type relu reads the padding layer "p"',
    'input: "x" layers { layer { name: "p" type: "padding" pad: 1 } bottom: "x" top: "y" }'
    ' layers { layer { name: "c" type: "conv" } bottom: "y" bottom: "x" }': 'layer "c" and its padding layer "p"',
    'input: "x" input: "y" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4': "8 input_dim",
    'input: "x" input: "y" input_shape { dim: 1 }': "2 input_shape, not 1",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_caffe_refuses(text):
    with pytest.raises(ProtoError, match=f"^old.prototxt: .*{REFUSED[text]}"):
        upgrade_net(parse_text(text, pb.NetParameter), "old.prototxt")


def test_two_solver_types_are_refused():
    with pytest.raises(ProtoError, match="both solver_type and type"):
        upgrade_solver(parse_text('solver_type: ADAM type: "Adam"', pb.SolverParameter), "old.prototxt")
