"""Layers of YOLO: ground truth that is none, labels of whole images, and the quirks that they do not follow."""

import numpy as np
import pytest

from fcaffe.errors import DataError, LayerError
from tests.conftest import make_net

NET = """force_backward: true layer {{ name: "in" type: "Input" top: "x" top: "truth"
  input_param {{ shape {{ dim: 2 dim: {channels} dim: 2 dim: 2 }} shape {{ dim: 2 dim: {rows} }} }} }}
layer {{ name: "loss" type: "{type}" bottom: "x" bottom: "truth" top: "loss" {param} }}"""

FIRST = """force_backward: true
layer { name: "in" type: "Input" top: "x" top: "truth"
  input_param { shape { dim: 1 dim: 48 } shape { dim: 1 dim: 28 } } }
layer { name: "loss" type: "DetectionLoss" bottom: "x" bottom: "truth" top: "loss"
  detection_loss_param { side: 2 num_class: 2 } }"""

KINDS = {
    "RegionLoss": "region_loss_param { side: 2 num_class: 3 num: 2 biases: 1 biases: 1 biases: 2 biases: 1 %s }",
    "Yolov3": "yolov3_param { num_class: 3 num: 2 biases: 20 biases: 20 biases: 50 biases: 30 mask: 0 mask: 1 %s }",
}


def net_of(kind, more=""):
    return make_net(NET.format(type=kind, channels=16, rows=10, param=KINDS[kind] % more))


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_without_height_are_left_out(kind):
    losses = []
    for row in [(0, 0.5, 0.5, 0.1, 0), (0, 0, 0, 0, 0)]:
        net = net_of(kind)
        net.blob("truth").data[0, :5] = row
        losses.append(net.forward())
    assert losses[0] == losses[1] > 0


def test_the_map_says_how_many_cells_region_loss_has():
    """In public nets for inputs of several sizes, `side` is that of one of them."""
    losses = []
    for side in (2, 13):
        param = (KINDS["RegionLoss"] % "").replace("side: 2", f"side: {side}")
        net = make_net(NET.format(type="RegionLoss", channels=16, rows=10, param=param))
        net.blob("x").data[...] = 0.25
        losses.append(float(net.forward()))
    assert losses[0] == losses[1] > 0


def test_each_region_loss_counts_its_passes():
    """12800 images, here two a pass; then boxes without objects have no gradient."""
    net = net_of("RegionLoss")
    net.blob("x").data[...] = 0.25
    layer = net.layers[-1]
    for passes in (6399, 6400):
        layer.passes.data[...] = passes
        net.forward()
        net.backward()
        assert bool(net.blob("x").diff.reshape(2, 2, 8, 2, 2)[:, :, :4].any()) == (passes < 6400)
    assert layer.state()["passes"] == 6401


def test_a_label_of_a_whole_image_trains_the_likeliest_cell(tmp_path):
    """Its class and ancestors, and objectness if that is below 0.3; boxes of other images go on as usual."""
    tree = tmp_path / "tree"
    tree.write_text("animal -1\ncat 0\ndog 0\n")
    net = net_of("RegionLoss", f'softmax_tree: "{tree}"')
    net.layers[-1].passes.data[...] = 6400
    x = net.blob("x").data.reshape(2, 2, 8, 2, 2)
    x[0, 1, 4, 1, 0], x[0, 1, 7, 1, 0] = -1, 3  # the dog of the second anchor
    x[0, :, 4][x[0, :, 4] == 0] = -3
    net.blob("truth").data[0, :5] = (2, 100001, 100001, 1, 1)
    net.forward()
    net.backward()
    gradient = net.blob("x").diff.reshape(2, 2, 8, 2, 2)[0]
    scores = np.argwhere(gradient[:, 5:])
    assert {tuple(index) for index in scores} <= {(1, score, 1, 0) for score in range(3)}
    assert gradient[1, 7, 1, 0] < 0 < gradient[1, 6, 1, 0] and gradient[1, 4, 1, 0] < 0
    assert (gradient[0, 4] > 0).all() and not gradient[:, :4].any()


@pytest.mark.parametrize(
    ("lines", "message"), [("a -1\nb 0\n", "3 lines"), ("a -1\nb x\nc 0\n", "whole number"), ("", "/none")]
)
def test_trees(tmp_path, lines, message):
    path = tmp_path / ("tree" if lines else "none")
    (tmp_path / "tree").write_text(lines)
    with pytest.raises((LayerError, DataError), match=f'layer "loss" .*{message}'):
        net_of("RegionLoss", f'softmax_tree: "{path}"')


def test_without_objects_the_first_version_has_a_loss():
    """The fork divides by their number; its gradient is right."""
    net = make_net(FIRST)
    net.blob("x").data[0, 8:16] = 0.5
    assert net.forward() == pytest.approx(0.5 * 0.25)
    net.backward()
    gradient = net.blob("x").diff[0]
    assert (gradient[8:16] == 0.25).all() and np.count_nonzero(gradient) == 8
