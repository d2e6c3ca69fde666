"""Errors of layers that read regions of interest, and of the losses beside them."""

import numpy as np
import pytest

from tests.conftest import make_net

REGIONS = """layer {{ name: "in" type: "Input" top: "maps" top: "rois"
  input_param {{ shape {{ dim: 2 dim: 4 dim: 5 dim: 6 }} shape {{ dim: 3 dim: 5 }} }} }}
layer {{ name: "pool" type: "{type}" bottom: "maps" bottom: "rois" top: "pooled" {param} }}"""

POOLINGS = {
    "ROIPooling": "roi_pooling_param { pooled_h: 2 pooled_w: 2 }",
    "PSROIPooling": "psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 1 }",
    "ROIAlign": "roi_align_param { pooled_h: 2 pooled_w: 2 }",
}


@pytest.mark.parametrize(("kind", "param"), POOLINGS.items())
def test_regions_far_outside_the_maps_give_zeros(kind, param):
    net = make_net(REGIONS.format(type=kind, param=param))
    net.blob("maps").data[...] = 1
    net.blob("rois").data[...] = [[0, 50, 50, 90, 90], [1, -1e9, -1e9, -1e8, -1e8], [0, 1e30, 1e30, 3e38, 3e38]]
    net.forward()
    assert not net.blob("pooled").data.any()


PROPOSAL = """layer { name: "in" type: "Input" top: "scores" top: "codes" top: "sizes" input_param {
  shape { dim: 2 dim: 4 dim: 3 dim: 4 } shape { dim: 2 dim: 8 dim: 3 dim: 4 } shape { dim: 2 dim: 3 } } }
layer { name: "proposal" type: "Proposal" bottom: "scores" bottom: "codes" bottom: "sizes" top: "rois" top: "best"
  proposal_param { base_size: 8 feat_stride: 8 min_size: 3 ratio: 1 ratio: 2 scale: 1
    pre_nms_topn: 20 post_nms_topn: 5 nms_thresh: 0.3 } }"""


def best_boxes(scores, codes, height, width, scale):
    """The regions of one image box by box, in float64."""
    found = []
    for index in np.ndindex(3, 4, 2):
        row, column, anchor = index
        w, h = [(8, 8), (6, 12)][anchor]
        x, y = 8 * column + 4, 8 * row + 4
        dx, dy, dw, dh = codes[4 * anchor : 4 * anchor + 4, row, column].astype(float)
        x, y, w, h = x + dx * w, y + dy * h, w * np.exp(dw), h * np.exp(dh)
        box = np.clip([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 0, [width - 1, height - 1] * 2)
        is_large = min(box[2:] - box[:2]) + 1 >= 3 * scale
        found.append((scores[2 + anchor, row, column] * is_large, box))
    kept = []
    for score, box in sorted(found, key=lambda pair: -pair[0])[:20]:
        if all(overlap(box, other) <= 0.3 for _, other in kept):
            kept.append((score, box))
    return kept[:5]


def overlap(a, b):
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0)
    return sides.prod() / ((a[2:] - a[:2] + 1).prod() + (b[2:] - b[:2] + 1).prod() - sides.prod())


def test_proposals():
    net, random = make_net(PROPOSAL), np.random.default_rng(3)
    scores = random.permutation(96).reshape(2, 4, 3, 4).astype(np.float32) / 96
    codes = random.normal(0, 0.4, (2, 8, 3, 4)).astype(np.float32)
    net.blob("scores").data[...], net.blob("codes").data[...] = scores, codes
    net.blob("sizes").data[...] = [[24, 32, 1], [20, 30, 2]]
    net.forward()
    expected = [best_boxes(scores[0], codes[0], 24, 32, 1), best_boxes(scores[1], codes[1], 20, 30, 2)]
    rows = [(image, *box) for image, found in enumerate(expected) for _, box in found]
    np.testing.assert_allclose(net.blob("rois").data, rows, atol=1e-5)
    np.testing.assert_allclose(net.blob("best").data, [score for found in expected for score, _ in found], atol=1e-7)


def test_proposals_that_are_no_numbers_are_dropped():
    net = make_net(PROPOSAL)
    net.blob("sizes").data[...] = [24, 32, 1]
    net.blob("scores").data[0] = np.nan
    net.blob("codes").data[1, :, 1:] = np.nan
    net.forward()
    regions = net.blob("rois").data
    assert np.isfinite(regions).all() and set(regions[:, 0]) == {1}


def test_roi_pooling_without_regions_and_of_one_turned_round():
    net = make_net("force_backward: true " + REGIONS.format(type="ROIPooling", param=POOLINGS["ROIPooling"]))
    net.blob("rois").data[...] = [[0, 4, 3, 1, 1], [0, 1, 1, 3, 3], [1, 0, 0, 2, 2]]  # the first from right to left
    net.blob("maps").data[...] = np.random.default_rng(1).random((2, 4, 5, 6))
    net.forward()
    net.blob("pooled").diff[...] = np.array([1, 0, 0]).reshape(3, 1, 1, 1)
    net.backward()
    assert net.blob("maps").diff.sum() == 16, "4 channels of 2 x 2 bins"
    net.blob("rois").reshape(0, 5)
    net.reshape()
    net.forward()
    net.backward()
    assert net.blob("pooled").shape == (0, 4, 2, 2) and not net.blob("maps").diff.any()


@pytest.mark.parametrize("weight", ["", "loss_weight: 1"])
def test_a_loss_of_fast_rcnn_without_a_weight_is_warned_of(weight, capfd):
    shapes = "shape { dim: 4 dim: 8 } " * 4
    make_net(f"""layer {{ name: "in" type: "Input" top: "a" top: "b" top: "c" top: "d" input_param {{ {shapes} }} }}
      layer {{ name: "loss" type: "SmoothL1Loss" bottom: "a" bottom: "b" bottom: "c" bottom: "d" top: "l"
        {weight} }}""")
    warned = 'layer "loss" (SmoothL1Loss): without loss_weight its loss does not count' in capfd.readouterr().err
    assert warned == (not weight)
