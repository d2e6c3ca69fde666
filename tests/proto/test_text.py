import sys
from typing import Any

import pytest

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, read_solver, read_text, write_text


def test_everything_that_caffes_parser_takes():
    net = parse_text(
        "name: 'it'; input_dim: 1, input_dim: 0x10;\r\n"
        "\tlayer: {  # a comment, \xe9\n"
        '  type: "In" \'put\'\n  "x" top: "a\\tb \\"q\\" \\101"\n'
        "  loss_weight: 1. loss_weight: .5 loss_weight: 1e-3 loss_weight: 1f loss_weight:-2.5E+1 loss_weight: inf\n"
        "  propagate_down: 1 propagate_down: t propagate_down: True propagate_down: true\n"
        "  propagate_down: 0 propagate_down: f propagate_down: False propagate_down: false\n"
        "  include < phase: 0 > include { phase: TEST }\n"
        "  reshape_param { shape { dim: [2, 3] dim: -1 } } }\n"
        'layer: [{ name: "a" }, { name: "b" }]  # no line end',
        pb.NetParameter,
    )
    layer = net.layer[0]
    assert (net.name, list(net.input_dim)) == ("it", [1, 16])
    assert (layer.type, list(layer.top)) == ("Inputx", ['a\tb "q" A'])
    assert list(layer.loss_weight) == pytest.approx([1, 0.5, 1e-3, 1, -25, float("inf")])
    assert list(layer.propagate_down) == [True] * 4 + [False] * 4
    assert [rule.phase for rule in layer.include] == [pb.TRAIN, pb.TEST]
    assert list(layer.reshape_param.shape.dim) == [2, 3, -1]
    assert [other.name for other in net.layer[1:]] == ["a", "b"]


ERRORS = {
    # A field that does not exist
    "layer {\n  convolution_parm { } }": '2:3: LayerParameter has no field named "convolution_parm"'
    ' (did you mean "convolution_param"?)',
    "layer { kernel_size: 3 }": '1:9: LayerParameter has no field named "kernel_size";'
    " it belongs inside convolution_param or pooling_param",
    "layer { xyzzy: 3 }": '1:9: LayerParameter has no field named "xyzzy"',
    "base_lr: 0.1": '1:1: NetParameter has no field named "base_lr"; is this the prototxt of a solver?',
    'layer: [{ name: "a" }, { nam: 3 }]': '1:26: LayerParameter has no field named "nam" (did you mean "name"?)',
    # ... but in a fork
    "layer { loss_param { normalization: PRE_FIXED } }": '1:37: NormalizationMode: "PRE_FIXED" is a value of'
    " the R-FCN fork (daijifeng001/caffe-rfcn), which BVLC Caffe does not have",
    # Values
    "layer { pooling_param { pool: MAXX } }": '1:31: PoolingParameter.PoolMethod has no value "MAXX"'
    ' (did you mean "MAX"?)',
    "layer { pooling_param { pool: 7 } }": '1:31: PoolingParameter.PoolMethod has no value "7"'
    " (it has MAX, AVE, STOCHASTIC)",
    'layer { pooling_param { pool: "MAX" } }': '1:31: PoolingParameter.PoolMethod has no value "MAX"'
    " (write it without quotation marks)",
    "layer { pooling_param { pad: -1 } }": "1:30: Value out of range: -1",
    'layer { name: "\udcff" }': "1:15: the string is not UTF-8",
    "layer { clip_param { min: 0 } }": " layer[0].clip_param.max is required, and missing",
    # Braces
    'layer {\n  name: "a"\n  pooling_param { pad: 1\n}': '4:1: Expected "}";'
    " an opening brace before it is never closed",
    "layer { convolution_param { pad: 3\n layer { }": '2:2: ConvolutionParameter has no field named "layer";'
    ' is a "}" missing before it?',
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_say_where_and_what(text):
    with pytest.raises(ProtoError) as caught:
        parse_text(text, pb.NetParameter, "net.prototxt")
    assert str(caught.value) == f"net.prototxt:{ERRORS[text]}"


def test_a_net_given_as_solver_is_recognised():
    with pytest.raises(ProtoError, match="is this the prototxt of a net"):
        parse_text("layer { }", pb.SolverParameter)


@pytest.mark.parametrize("read", [read_net, read_solver])
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("folder", "is a folder"), (b"\x0a\x00\x01", "is a binary file")],
)
def test_files_that_are_no_prototxt(tmp_path, read, content, message):
    path = tmp_path / "x.prototxt"
    if content == "folder":
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(ProtoError, match=f"x.prototxt {message}"):
        read(path)


def test_comments_may_have_any_encoding(tmp_path):
    path = tmp_path / "x.prototxt"
    path.write_bytes(b'\xef\xbb\xbfname: "\xc3\xa9"  # \xe9\xff\n')
    assert read_text(path, pb.NetParameter).name == "é"


def test_what_is_written_reads_the_same(tmp_path):
    net = parse_text('name: "é" layer { loss_weight: 0.1 include { phase: TEST } }', pb.NetParameter)
    write_text(tmp_path / "x.prototxt", net)
    assert read_net(tmp_path / "x.prototxt") == net
    assert "loss_weight: 0.1\n" in (tmp_path / "x.prototxt").read_text(encoding="utf-8")


def test_the_work_grows_as_the_net():
    layer = 'layer {\n  name: "c"\n  type: "Convolution"\n  bottom: "a"\n  top: "b"\n  param { lr_mult: 1 }\n' + (
        "  convolution_param {\n    num_output: 96\n    kernel_size: 3\n  }\n}\n"
    )

    def calls(layers: int) -> int:
        count = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            net = parse_text(layer * layers, pb.NetParameter)
        finally:
            sys.setprofile(None)
        assert len(net.layer) == layers
        return count

    few, many = calls(40), calls(400)
    assert many < 11 * few and many < 400 * 1000, f"{few} calls for 40 layers, {many} for 400"
