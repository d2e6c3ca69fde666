"""Fields of forks that say what fields of Caffe's own say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fcaffe.cli.net_files import upgrade
from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, write_text
from fcaffe.proto.upgrade import net_is_current
from fcaffe.tools.summary import summarize
from fcaffe.tools.target import with_rounding

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 23 dim: 30 } } }'
POOLING = 'layer { name: "it" type: "Pooling" bottom: "x" top: "it" pooling_param { kernel_size: 3 stride: 2 %s } }'
CONVOLUTION = (
    'layer { name: "it" type: "Convolution" bottom: "x" top: "it" '
    "convolution_param { num_output: 1 kernel_size: 3 %s } }"
)
SAME = [
    (POOLING, "pad: 1 ceil_mode: false", "pad: 1 round_mode: FLOOR"),
    (POOLING, "ceil_mode: true", "round_mode: CEIL"),
    (POOLING, "torch_pooling: true", "round_mode: FLOOR"),
    (POOLING, "ceil_mode: false round_mode: FLOOR", "round_mode: FLOOR"),
    (CONVOLUTION, "hole: 2", "dilation: 2"),
    (CONVOLUTION, "hole_h: 2 hole_w: 3", "dilation: 2 dilation: 3"),
    (CONVOLUTION, "hole_w: 3", "dilation: 1 dilation: 3"),
    (CONVOLUTION, "dilation_h: 4 dilation_w: 4", "dilation: 4"),
    (CONVOLUTION, "dilation: 2 dilation: 2 hole: 2", "dilation: 2"),
]


@pytest.mark.parametrize(("layer", "forks", "caffes"), SAME)
def test_a_forks_field_is_as_caffes_own(layer: str, forks: str, caffes: str, tmp_path: Path) -> None:
    for name, fields in (("forks", forks), ("caffes", caffes)):
        (tmp_path / name).write_text(INPUT + layer % fields)
    net = read_net(tmp_path / "forks")
    assert net == read_net(tmp_path / "caffes")
    assert net_is_current(net, "net")
    shapes = [summarize(str(tmp_path / name), pb.TEST).layers[1].top_shapes for name in ("forks", "caffes")]
    assert shapes[0] == shapes[1]


SHAPES = "kernel_shape { dim: [1, 3, 2] } stride_shape { dim: [1, 2, 2] } pad_shape { dim: [0, 1, 1] }"
C3D = "kernel_depth: 1 kernel_h: 3 kernel_w: 2 stride: 2 pad: 1"  # the depth's stride is 1, its padding 0


@pytest.mark.parametrize("kind", ["Pooling", "Convolution"])
def test_forks_notations_of_windows_over_three_axes_become_one_number_an_axis(kind: str) -> None:
    own, param = "_3d" * (kind == "Pooling"), f"{kind.lower()}_param"
    for layer, fields in (
        (f'layer {{ type: "{kind}" {param}', f"kernel_size{own}: [1, 3, 2] stride{own}: [1, 2, 2] pad{own}: [0, 1, 1]"),
        (f'layer {{ type: "{kind}" {param}', "kernel_size: 1 kernel_size: [3, 2] stride: [1, 2, 2] pad: 0 pad: [1, 1]"),
        (f'layer {{ type: "Nd{kind}" {param}', SHAPES),
        (f'layer {{ type: "{kind}" {param}', C3D),
        (f'layer {{ type: "{kind}3D" {kind.lower()}3d_param', C3D),
        (f"layers {{ type: {kind.upper()}3D {param}", C3D),
        (f'layer {{ type: "{kind}" {param}', C3D.replace("kernel_depth", "kernel_d") + " stride_d: 1 pad_d: 0"),
    ):
        net = read_net(f"{layer} {{ {fields} }} }}")
        p = getattr(net.layer[0], param)
        numbers = [list(getattr(p, f"{field}{own}")) for field in ("kernel_size", "stride", "pad")]
        assert (net.layer[0].type, numbers) == (kind, [[1, 3, 2], [1, 2, 2], [0, 1, 1]])
        assert net_is_current(net, "net") and len(p.ListFields()) == 3


def test_ceil_mode_and_round_mode_say_the_same(tmp_path: Path) -> None:
    layer = 'layer {{ name: "{0}" type: "Pooling" bottom: "x" top: "{0}" pooling_param {{ kernel_size: 2 {1} }} }}'
    modes = ["round_mode: FLOOR", "round_mode: CEIL", ""]
    path = tmp_path / "net.prototxt"
    path.write_text("".join(layer.format(f"p{index}", mode) for index, mode in enumerate(modes)))
    net = read_net(path)
    theirs = with_rounding(net, "ceil_mode")
    given = [(p.pooling_param.HasField("ceil_mode"), p.pooling_param.ceil_mode) for p in theirs.layer]
    assert given == [(True, False), (True, True), (False, False)] and "round_mode" not in str(theirs)
    write_text(path, theirs)
    assert read_net(path) == net


@pytest.mark.parametrize(("kind", "param"), [("Convolution", "convolution"), ("InnerProduct", "inner_product")])
def test_a_fused_relu_becomes_a_layer(kind: str, param: str, tmp_path: Path) -> None:
    """Behind each top, in the phases of its layer, whose blobs stay its own."""
    path = tmp_path / "net.prototxt"
    path.write_text(
        f'layer {{ name: "it" type: "{kind}" bottom: "x" bottom: "z" top: "y" top: "u" include {{ phase: TEST }} '
        f"{param}_param {{ num_output: 2 relu: true negative_slope: 0.25 }} }}"
        'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param { relu: true } }'
        f'layer {{ name: "other" type: "{kind}" {param}_param {{ num_output: 2 relu: false }} }}'
    )
    net = read_net(path)
    assert [(layer.name, layer.type, *layer.top) for layer in net.layer] == [
        ("it", kind, "y", "u"),
        ("it/relu", "ReLU", "y"),
        ("it/relu1", "ReLU", "u"),
        ("norm", "BatchNorm", "y"),
        ("norm/relu", "ReLU", "y"),
        ("other", kind),
    ]
    assert [layer.relu_param.negative_slope for layer in net.layer] == [0, 0.25, 0.25, 0, 0, 0]
    assert [len(layer.include) for layer in net.layer] == [1, 1, 1, 0, 0, 0]
    assert net_is_current(net, "net")


def test_the_upgrade_program_writes_caffes_field(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old, new, again = tmp_path / "old", tmp_path / "new", tmp_path / "again"
    old.write_text(
        'input: "x" input_dim: [1, 2, 9, 9] layers { name: "it" type: POOLING bottom: "x" top: "it" '
        "pooling_param { kernel_size: 2 ceil_mode: false } }"
    )
    assert upgrade("upgrade_net_proto_text", str(old), str(new)) == 0
    err = capfd.readouterr().err
    assert "ceil_mode, a field of forks, is replaced by round_mode" in err
    assert "without effect" not in err
    assert "round_mode: FLOOR" in new.read_text()
    assert "ceil_mode" not in new.read_text()
    assert upgrade("upgrade_net_proto_text", str(new), str(again)) == 0
    assert "already in latest" in capfd.readouterr().err
    assert again.read_text() == new.read_text()


@pytest.mark.parametrize(
    ("layer", "fields", "message"),
    [
        (POOLING, "ceil_mode: true round_mode: FLOOR", "ceil_mode and round_mode contradict each other"),
        (CONVOLUTION, "hole_h: 2 hole_w: 2 dilation: 1", "hole_h and hole_w and dilation contradict each other"),
    ],
)
def test_contradictions_are_refused(layer: str, fields: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(INPUT + layer % fields)
    with pytest.raises(ProtoError, match=f'layer "it": {message}; remove .* which BVLC Caffe does not have'):
        read_net(path)
    assert parse_text(path.read_text(), pb.NetParameter).layer[1].name == "it"  # as it stands it can be read
