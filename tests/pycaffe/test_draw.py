"""pycaffe's draw: pictures of nets, with Graphviz and without."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fcaffe.errors import ArgumentError, FcaffeError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net
from fcaffe.pycaffe import draw, graph_picture
from tests.conftest import GOLDEN

ROOT = Path(__file__).parents[2]
MODELS = sorted((ROOT / "models").glob("*/train_val.prototxt"))

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
def no_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No program is found but those of this folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


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
    box = 'shape="record", fillcolor="#90EE90", style="filled"'
    assert rf'"relu_ReLU" [label="relu\n(ReLU)", {box}];' in text
    assert '"loss_blob" [label="loss"];' in text and '"label_blob" [label="label", shape="octagon"' in text
    assert '"data_Data" -> "label_blob" [label="Batch 64"];' in text
    assert '"conv_blob" -> "relu_ReLU" [label=""];' in text and '"relu_ReLU" -> "conv_blob"' in text
    assert '[label="20"]' not in draw.get_pydot_graph(net, "LR", label_edges=False).to_string()
    odd = pb.NetParameter(layer=[pb.LayerParameter(name='a|"b', type="X", top=["<t>"])])
    assert r'[label="a\|\"b (X)", shape="record"' in draw.draw_net(odd, "TB", "raw").decode()


def test_layers_of_a_phase(net: Any) -> None:
    def layers(phase: int | None) -> set[str]:
        return {name for name in draw.get_pydot_graph(net, "LR", phase=phase).nodes if not name.endswith("_blob")}

    every = {"data_Data", "conv_Convolution", "relu_ReLU", "pool_Pooling", "ip_InnerProduct", "loss_SoftmaxWithLoss"}
    assert layers(None) == layers(pb.TRAIN) == every
    assert layers(pb.TEST) == every - {"data_Data", "loss_SoftmaxWithLoss"}
    net.layer[0].exclude.add(phase=pb.TEST)
    with pytest.raises(ValueError, match="layer data has both include and exclude specified"):
        layers(pb.TRAIN)


@pytest.mark.parametrize("rankdir", ["TB", "LR", "BT", "RL"])
def test_an_svg_needs_nothing_else(net: Any, rankdir: str, tmp_path: Path) -> None:
    path = tmp_path / "net.svg"
    draw.draw_net_to_file(net, str(path), rankdir)
    root = ElementTree.fromstring(path.read_bytes())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Batch 64", "20", "10", "label", "loss"} <= set(texts)
    whole = "conv (Convolution) kernel size: 5 stride: 2 pad: 1"
    assert (whole in texts) == (rankdir in ("TB", "BT")) and ("kernel size: 5" in texts) == (rankdir in ("LR", "RL"))
    assert "href" not in path.read_text()
    places = {
        text: (float(e.get("x", "0")), float(e.get("y", "0")))
        for text, e in zip(texts, root.iter("{http://www.w3.org/2000/svg}text"), strict=True)
    }
    axis, sign = {"TB": (1, 1), "LR": (0, 1), "BT": (1, -1), "RL": (0, -1)}[rankdir]
    order = [sign * places[name][axis] for name in ("data", "conv", "pool", "ip", "loss") if name in places]
    assert order == sorted(order)


@pytest.mark.parametrize("rankdir", ["TB", "LR"])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name)
def test_boxes_do_not_overlap_and_lines_go_around_them(path: Path, rankdir: str) -> None:
    nodes, edges = draw.nodes_and_edges(draw.get_pydot_graph(read_net(path), rankdir))
    drawing = graph_picture._draw(nodes, edges, rankdir)
    least = np.array([np.min(corners, 0) for _, _, corners in drawing.outlines])
    most = np.array([np.max(corners, 0) for _, _, corners in drawing.outlines])
    apart = (most[:, np.newaxis] < least) | (least[:, np.newaxis] > most)
    assert np.all(apart.any(2) | np.eye(len(least), dtype=bool))
    t = np.linspace(0, 1, 9)[:, np.newaxis, np.newaxis]
    names = list(nodes)
    for edge, curve in zip(edges, drawing.curves, strict=True):
        a, b, c, d = (np.array(curve[n : len(curve) - 3 + n : 3]) for n in range(4))
        points = (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
        inside = np.all((points[..., np.newaxis, :] > least + 1) & (points[..., np.newaxis, :] < most - 1), -1)
        crossed = {names[n] for n in np.unique(np.nonzero(inside)[-1])}
        assert crossed <= {edge.source, edge.target}, edge


def test_every_letter_fits_into_its_box() -> None:
    font = pytest.importorskip("matplotlib.ft2font").FT2Font(
        pytest.importorskip("matplotlib.font_manager").findfont("DejaVu Sans")
    )
    font.set_size(graph_picture.FONT, 72)
    for text in ("inception_3a/5x5_reduce (Convolution) kernel size: 1 stride: 1 pad: 0", "WWW@%mmm", "iillff"):
        font.set_text(text)
        estimate = graph_picture._width(text, graph_picture.FONT)
        assert abs(font.get_width_height()[0] / 64 - estimate) < graph_picture.PADDING


@pytest.mark.parametrize(("ext", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_formats_are_drawn_by_matplotlib(net: Any, ext: str, start: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw.draw_net(net, "LR", ext).startswith(start)
    draw.get_pydot_graph(net, "TB").write(tmp_path / f"x.{ext}", format=ext)
    assert (tmp_path / f"x.{ext}").read_bytes().startswith(start)


def test_what_is_missing_is_named(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FcaffeError, match=r"PNG needs Graphviz .*or matplotlib \(pip install 'fcaffe\[plot\]'\)"):
        draw.draw_net(net, "LR")
    with pytest.raises(FcaffeError, match='format "gif" needs Graphviz'):
        draw.draw_net(net, "LR", "gif")
    with pytest.raises(ArgumentError, match='rankdir "XX" is none of TB, BT, LR and RL'):
        draw.draw_net(net, "XX", "svg")


def test_graphviz_is_asked_where_it_is_installed(net: Any, no_graphviz: Path) -> None:
    program = no_graphviz / "dot"
    program.write_text(
        f"#!{sys.executable}\nimport sys\ntext = sys.stdin.read()\n"
        "if sys.argv[1] == '-Tgif': sys.exit('Format: \"gif\" not recognized.')\n"
        "print(sys.argv[1], text.splitlines()[0])\n"
    )
    program.chmod(0o755)
    assert draw.draw_net(net, "LR", "svg") == b'-Tsvg digraph "small" {\n'
    assert draw.get_pydot_graph(net, "LR").create_png() == b'-Tpng digraph "small" {\n'
    with pytest.raises(FcaffeError, match=r'dot cannot draw the net as gif: Format: "gif" not recognized'):
        draw.draw_net(net, "LR", "gif")


def test_an_empty_net_and_odd_graphs() -> None:
    assert b"<svg" in draw.draw_net(pb.NetParameter(), "TB", "svg")
    with pytest.raises(AttributeError):
        _ = draw.get_pydot_graph(pb.NetParameter(), "TB").nothing
    for path in sorted((GOLDEN / "nets").glob("*.prototxt")):
        assert re.search(rb"</svg>\s*$", draw.draw_net(read_net(path), "TB", "svg"))
    eltwise = parse_text(
        'layer { name: "e" type: "Eltwise" bottom: "a" bottom: "b" top: "a" }'
        'layer { name: "f" type: "ReLU" bottom: "a" top: "b" }',
        pb.NetParameter,
    )
    assert draw.draw_net(eltwise, "TB", "svg").count(b"<path") == 5
