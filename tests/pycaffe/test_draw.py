"""pycaffe's draw: nets in Graphviz's language, and the pictures that Graphviz makes of them."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fcaffe.errors import ArgumentError, FcaffeError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.pycaffe import draw

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"

NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN } data_param { batch_size: 64 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_size: 5 stride: 2 pad: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" exclude { phase: TEST } }
"""


@pytest.fixture
def net() -> Any:
    return parse_text(NET, pb.NetParameter)


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are found; it is empty, so pygraphviz draws."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def pygraphviz() -> None:
    pytest.importorskip("pygraphviz", reason="needs the extra fcaffe[plot]")


def texts_of(svg: bytes) -> list[str]:
    """The texts of a picture, with single spaces."""
    return [" ".join("".join(text.itertext()).split()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_labels_are_caffes(net: Any) -> None:
    data, conv, relu, pool, ip, loss = net.layer
    assert draw.get_layer_label(conv, "TB") == '"conv (Convolution) kernel size: 5 stride: 2 pad: 1"'
    expected = r'"conv\n(Convolution)\nkernel size: 5\nstride: 2\npad: 1\nlr mult: 1.0, 2.0"'
    assert draw.get_layer_label(conv, "LR", display_lrm=True) == expected
    assert draw.get_layer_label(pool, "BT") == '"pool (Pooling AVE) kernel size: 3 stride: 2 pad: 0"'
    assert draw.get_layer_label(ip, "TB", True) == '"ip (InnerProduct) lr mult: 1.0, 1.0"'
    assert draw.get_layer_label(relu, "RL") == r'"relu\n(ReLU)"'
    assert [draw.get_edge_label(layer) for layer in (data, conv, ip, loss)] == ["Batch 64", "20", "10", '""']
    assert draw.get_pooling_types_dict() == {0: "MAX", 1: "AVE", 2: "STOCHASTIC"}
    assert [draw.choose_color_by_layertype(layer.type) for layer in (conv, pool, ip, relu)] == [
        *("#FF5050", "#FF9900", "#CC33FF", "#6495ED")
    ]


def test_learning_rate_multipliers() -> None:
    layer = pb.LayerParameter(name="x", type="Deconvolution")
    assert draw.get_layer_lr_mult(layer) == (1, 1)
    layer.param.add(lr_mult=0)
    assert draw.get_layer_lr_mult(layer) == (0, 1)
    layer.param.add(lr_mult=0)
    assert draw.get_layer_lr_mult(layer) == (0, 0)
    assert "lr mult" not in draw.get_layer_label(layer, "TB", True)
    layer.param.add()
    with pytest.raises(ValueError, match=r'Could not parse the learning rate multiplier.*"x" has 3'):
        draw.get_layer_lr_mult(layer)
    with pytest.raises(ValueError, match="ReLU layers do not have a learning rate multiplier"):
        draw.get_layer_lr_mult(pb.LayerParameter(type="ReLU"))


def test_the_graph_in_graphvizs_language(net: Any) -> None:
    text = draw.draw_net(net, "LR", "raw").decode()
    assert text.splitlines()[:2] == ['digraph "small" {', 'rankdir="LR";']
    box = 'shape="box", fillcolor="#90EE90", style="filled"'
    assert rf'"relu_ReLU" [label="relu\n(ReLU)", {box}];' in text
    assert '"loss_blob" [label="loss"];' in text and '"label_blob" [label="label", shape="octagon"' in text
    assert '"data_Data" -> "label_blob" [label="Batch 64"];' in text
    assert '"conv_blob" -> "relu_ReLU";' in text and '"relu_ReLU" -> "conv_blob"' in text
    assert '[label="20"]' not in draw.get_pydot_graph(net, "LR", label_edges=False).to_string()
    with pytest.raises(ArgumentError, match='rankdir "XX" is none of TB, BT, LR, RL'):
        draw.draw_net(net, "XX", "raw")


def test_layers_of_a_phase(net: Any) -> None:
    def layers(phase: int | None) -> set[str]:
        return {name for name in draw.get_pydot_graph(net, "LR", phase=phase).nodes if not name.endswith("_blob")}

    every = {"data_Data", "conv_Convolution", "relu_ReLU", "pool_Pooling", "ip_InnerProduct", "loss_SoftmaxWithLoss"}
    assert layers(None) == layers(pb.TRAIN) == every
    assert layers(pb.TEST) == every - {"data_Data", "loss_SoftmaxWithLoss"}
    net.layer[0].exclude.add(phase=pb.TEST)
    with pytest.raises(ValueError, match="layer data has both include and exclude specified"):
        layers(pb.TRAIN)


@pytest.mark.usefixtures("pygraphviz")
@pytest.mark.parametrize(
    ("ext", "start"),
    [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("raw", b"digraph")],
)
def test_formats(net: Any, ext: str, start: bytes, tmp_path: Path) -> None:
    assert draw.draw_net(net, "LR", ext).startswith(start)
    draw.get_pydot_graph(net, "TB").write(tmp_path / f"x.{ext}", format=ext)
    assert (tmp_path / f"x.{ext}").read_bytes().startswith(start)


@pytest.mark.usefixtures("pygraphviz")
def test_what_graphviz_cannot_do_is_named(net: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FcaffeError, match="Graphviz cannot draw the net as xyz: "):
        draw.draw_net(net, "LR", "xyz")
    assert capfd.readouterr() == ("", "")


def test_without_graphviz_it_says_what_to_install(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FcaffeError, match=r"as png needs Graphviz .*pip install matplotlib pygraphviz"):
        draw.draw_net(net, "LR")


def test_the_program_dot_comes_first(net: Any, programs: Path) -> None:
    program = programs / "dot"
    program.write_text(
        f"#!{sys.executable}\nimport sys\ntext = sys.stdin.read()\n"
        "if sys.argv[1] == '-Tgif': sys.exit('Format: \"gif\" not recognized.')\n"
        "print(sys.argv[1], text.splitlines()[0])\n"
    )
    program.chmod(0o755)
    assert draw.draw_net(net, "LR", "svg") == b'-Tsvg digraph "small" {\n'
    assert draw.get_pydot_graph(net, "LR").create_png() == b'-Tpng digraph "small" {\n'
    with pytest.raises(FcaffeError, match=r'Graphviz cannot draw the net as gif: Format: "gif" not recognized'):
        draw.draw_net(net, "LR", "gif")


@pytest.mark.usefixtures("pygraphviz")
def test_odd_names_are_drawn_as_they_are() -> None:
    names = ["first", "\\", "a\\", '"', '\\"', "\\N\\G\\l", "{a|<b>}", "&lt;", "-->", "]; x [", "#", "é\u4e2d"]
    chain = [
        pb.LayerParameter(name=name, type="X", bottom=[before], top=[name])
        for before, name in itertools.pairwise(names)
    ]
    texts = "\n".join(texts_of(draw.draw_net(pb.NetParameter(layer=chain), "TB", "svg")))
    assert all(name in texts for name in names)
