import pytest

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, read_solver, write_text

ERRORS = {
    # A field that does not exist
    "layer {\n  convolution_parm { } }": '2:3: LayerParameter has no field named "convolution_parm"'
    ' (did you mean "convolution_param"?)',
    "layer { kernel_size: 3 }": '1:9: LayerParameter has no field named "kernel_size";'
    " it belongs inside convolution_param or pooling_param",
    "layer { xyzzy: 3 }": '1:9: LayerParameter has no field named "xyzzy"',
    "base_lr: 0.1": '1:1: NetParameter has no field named "base_lr"; is this the prototxt of a solver?',
    'layer: [{ name: "a" }, { nam: 3 }]': '1:26: LayerParameter has no field named "nam" (did you mean "name"?)',
    # Values
    "layer { pooling_param { pool: MAXX } }": '1:31: PoolingParameter.PoolMethod has no value "MAXX"'
    ' (did you mean "MAX"?)',
    "layer { pooling_param { pool: 7 } }": '1:31: PoolingParameter.PoolMethod has no value "7"'
    " (it has MAX, AVE, STOCHASTIC)",
    'layer { pooling_param { pool: "MAX" } }': '1:31: PoolingParameter.PoolMethod has no value "MAX"'
    " (write it without quotation marks)",
    "layer { pooling_param { pad: -1 } }": "1:30: Value out of range: -1",
    "layer { clip_param { min: 0 } }": " layer[0].clip_param.max is required, and missing",
    # Braces
    'layer {\n  name: "a"\n  pooling_param { pad: 1\n}': '4:1: Expected "}";'
    " layer, which begins on line 1, is never closed",
    "layer { convolution_param { pad: 3\n layer { }": '2:2: ConvolutionParameter has no field named "layer":'
    ' a "}" is missing before line 2, at the end of convolution_param of line 1, in the layer that begins on line 1',
    'layer {\n name: "a"\n\nlayer { name: "b" }': '4:1: LayerParameter has no field named "layer": a "}" is missing'
    " before line 4, at the end of the layer that begins on line 1",
    # Numbers
    "layer { dropout_param { dropout_ratio: 0,5 } }": "1:42: 0,5 is no number; write 0.5, or [0, 5] for a list",
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


def test_what_is_written_reads_the_same(tmp_path):
    net = parse_text('name: "é" layer { loss_weight: 0.1 include { phase: TEST } }', pb.NetParameter)
    write_text(tmp_path / "x.prototxt", net)
    assert read_net(tmp_path / "x.prototxt") == net
    assert "loss_weight: 0.1\n" in (tmp_path / "x.prototxt").read_text(encoding="utf-8")
