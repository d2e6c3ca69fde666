"""Prototxts as people write them: the syntax that Caffe's parser takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, read_solver

PLAIN = """
layer {
  name: "a"
  type: "Pooling"
  top: "b"
  top: "c"
  loss_weight: 1
  loss_weight: 0.5
  pooling_param {
    pool: AVE
    kernel_size: 3
    global_pooling: true
  }
}
"""
SAME = {
    "colon before a message": 'layer: { name: "a" type: "Pooling" top: "b" top: "c" loss_weight: 1 loss_weight: 0.5'
    " pooling_param: { pool: AVE kernel_size: 3 global_pooling: true } }",
    "no space anywhere": 'layer{name:"a"type:"Pooling"top:"b"top:"c"loss_weight:1 loss_weight:.5 '
    "pooling_param{pool:AVE kernel_size:3 global_pooling:true}}",
    "commas": 'layer { name: "a", type: "Pooling", top: "b", top: "c", loss_weight: 1, loss_weight: 0.5,'
    " pooling_param { pool: AVE, kernel_size: 3, global_pooling: true }, }",
    "semicolons": 'layer { name: "a"; type: "Pooling"; top: "b"; top: "c"; loss_weight: 1; loss_weight: 0.5;'
    " pooling_param { pool: AVE; kernel_size: 3; global_pooling: true }; };",
    "single quotes": PLAIN.replace('"', "'"),
    "tabs": PLAIN.replace("  ", "\t").replace(": ", ":\t"),
    "CR LF": PLAIN.replace("\n", "\r\n"),
    "no final newline": PLAIN.strip(),
    "comments": PLAIN.replace("\n", " # \"{ '\n").replace("layer {", "layer  # one\n#two\n{"),
    "a comment in another language": PLAIN.replace("\n", "  # 中文, é\n"),
    "angle brackets": PLAIN.replace("{", "<").replace("}", ">"),
    "lists": 'layer: [{ name: "a" type: "Pooling" top: ["b", "c"] loss_weight: [1, .5]'
    " pooling_param { pool: AVE kernel_size: 3 global_pooling: true } }]",
    "numbers": PLAIN.replace("1\n", "1.\n").replace("0.5", "5E-1").replace(": 3", ": 0x3"),
    "more numbers": PLAIN.replace("1\n", "1e0\n").replace("0.5", ".5f").replace(": 3", ": 03"),
    "enums and booleans by number": PLAIN.replace("AVE", "1").replace("true", "1"),
    "booleans by letter": PLAIN.replace("true", "t"),
    "booleans capitalised": PLAIN.replace("true", "True"),
    "strings in pieces": PLAIN.replace('"Pooling"', '"Poo" \'li\'\n    "ng"'),
    "escapes": PLAIN.replace('"Pooling"', r'"\120ool\x69ng"'),
}


@pytest.mark.parametrize("how", SAME)
def test_one_net_in_many_hands(how: str, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes(SAME[how].encode())
    assert read_net(path) == parse_text(PLAIN, pb.NetParameter)


def test_bytes_of_another_encoding_may_stand_in_comments(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes(b"\xef\xbb\xbf" + PLAIN.replace("\n", "  # ?\n").encode().replace(b"?", "网络".encode("gbk")))
    assert read_net(path) == parse_text(PLAIN, pb.NetParameter)


PARAMS = {
    r"""'{"lr": 0.1, "names": ["a", "b"]}'""": '{"lr": 0.1, "names": ["a", "b"]}',
    r'''"{\"lr\": 0.1}"''': '{"lr": 0.1}',
    r'''"{'feat_stride': 16}"''': "{'feat_stride': 16}",
    r'''"'feat_stride': 16\n'scales': !!python/tuple [8, 16, 32]"''': "'feat_stride': 16\n'scales': "
    "!!python/tuple [8, 16, 32]",
    r'"C:\\data\\x # not a comment"': r"C:\data\x # not a comment",
    r'"a\tb\r\n\001\x7f\\?"': "a\tb\r\n\x01\x7f\\?",
}


@pytest.mark.parametrize("text", PARAMS)
def test_escapes_in_param_str(text: str) -> None:
    layer = f'layer {{ type: "Python" python_param {{ module: "m" layer: "L" param_str: {text} }} }}'
    assert parse_text(layer, pb.NetParameter).layer[0].python_param.param_str == PARAMS[text]


def test_solvers_in_many_hands(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_bytes(
        b'net: "net.prototxt"; base_lr: 1e-3, lr_policy:"step"\r\n\tgamma:.1 stepsize :1000 #\r\nsolver_mode: 1\r\n'
        b"solver_type: 1 snapshot_format: 0 test_initialization: 0 debug_info: f snapshot_prefix: 'x/'  \"y\" "
        b"stepvalue: [1, 2] stepvalue: 3 random_seed: 0x6a5"
    )
    solver = read_solver(path)
    assert (solver.base_lr, solver.gamma, solver.stepsize) == (pytest.approx(1e-3), pytest.approx(0.1), 1000)
    assert (solver.solver_mode, solver.type, solver.snapshot_format) == (pb.SolverParameter.GPU, "Nesterov", 0)
    assert (solver.test_initialization, solver.debug_info, solver.snapshot_prefix) == (False, False, "x/y")
    assert (list(solver.stepvalue), solver.random_seed) == ([1, 2, 3], 1701)


REFUSED = {
    'layers { type: "CONVOLUTION" }': 'LayerType has no value "CONVOLUTION" .write it without quotation marks',
    "layer { inner_product_param { num_output: NUM_OUTPUT } }": "1:43: .*NUM_OUTPUT",
    "layer { data_param { batch_size: ${BATCH} } }": r"1:34: .*\$",
    "layer { data_param { batch_size: 1.0 } }": "1:34: .*1.0",
    "layer { data_param { batch_size: 4294967296 } }": "1:34: .*4294967296",
    "layer { name: conv1 }": "1:15: .*conv1",
    "layer { blobs_lr: 1 }": "LayerParameter has no field named \"blobs_lr\"",
    "layer { quantum_param { } }": "LayerParameter has no field named \"quantum_param\"; if it is of a fork's layer,"
    " a layer of type \"Python\" can do its work",
    "layer { blip_param { } }": r"\(did you mean \"clip_param\"\?\); if it is of a fork.s layer, a layer of type",
    "layers { type: HYPERCOLUMN }": "LayerType has no value \"HYPERCOLUMN\"",
    "layers { type: HYPERCOLUMNS }": "if it is a fork's, a layer of type \"Python\" can do its work",
    "layers { type: 99 }": "LayerType has no value \"99\"",
    'layer { name: "a" name: "b" }': "multiple \"name\" fields",
    "layer { pooling_param { } pooling_param { } }": "multiple \"pooling_param\" fields",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_caffe_refuses_stays_refused(text: str) -> None:
    with pytest.raises(ProtoError, match=rf"^net\.prototxt:.*{REFUSED[text]}"):
        parse_text(text, pb.NetParameter, "net.prototxt")
