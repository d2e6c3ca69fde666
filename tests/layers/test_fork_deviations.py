"""Layers of forks: what they refuse, and where they differ from the forks' code on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.errors import LayerError, NetError
from tests.cases import each_of
from tests.conftest import net_of_layer
from tests.engine_choice import host
from tests.layers.examples import EXAMPLES

pytestmark = pytest.mark.usefixtures("on_each_engine")

IMAGE = (2, 4, 6, 6)
SSD = [(2, 16), (2, 12), (1, 2, 16), (1, 1, 3, 8)]


REFUSED = [
    ('type: "Permute" permute_param { order: 0 order: 0 }', [IMAGE], "lists the axes .*each at most once"),
    ('type: "Transpose" transpose_param { dim: 0 dim: 1 }', [IMAGE], "list all of the bottom's shape"),
    ('type: "Reverse" reverse_param { axis: 4 }', [IMAGE], "axis 4 is out of range"),
    ('type: "Flip"', [(2, 3)], "needs a bottom of four axes"),
    ('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', [IMAGE], "group 3 must divide the 4 channels"),
    ('type: "Reorg" reorg_param { stride: 3 }', [IMAGE], "must divide the channels"),
    ('type: "Normalize"', [(3,)], "needs a bottom of two axes or more"),
    ('type: "Normalize" norm_param {} normalize_param {}', [IMAGE], "norm_param is a field of .*SSD.*caffe-windows"),
    ('type: "Normalize" normalize_param { normalize_type: "L3" }', [IMAGE], 'must be "L2" or "L1", not "L3"'),
    ('type: "BN" bn_param { momentum: 0.9 bn_mode: LEARN }', [IMAGE], "momentum, .*PSPNet.*bn_mode, .*segnet"),
    ('type: "Interp"', [IMAGE], "needs height and width, zoom_factor, or shrink_factor"),
    ('type: "Interp" interp_param { zoom_factor: 2 pad_beg: 1 }', [IMAGE], "0 or less, they must leave something"),
    ('type: "Upsample" upsample_param { scale: 3 pad_out_h: true }', [IMAGE] * 2, "are for scales of 2 only"),
    ('type: "Upsample"', [IMAGE, (2, 4, 3, 6)], "needs a mask of the shape"),
    ('type: "Axpy"', [(2, 3), IMAGE, IMAGE], r"needs bottoms \(N, C\) and twice"),
    ('type: "CenterLoss"', [(3, 4), (3,)], "num_output is missing"),
    ('type: "TripletLoss"', [(3, 4), (3, 4), (3, 5)], "must have the same shape"),
    (
        'type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true class_weighting: 1 }',
        [(3, 4), (3,)],
        "class_weighting is given 1 times for the 4 classes",
    ),
    *(
        (f'type: "{kind}" loss_param {{ normalization: PRE_FIXED }}', [(2, 1), (2, 1)], "PRE_FIXED belongs to the OHEM")
        for kind in ("SoftmaxWithLoss", "SigmoidCrossEntropyLoss")
    ),
    *(
        (f'type: "MultiBoxLoss" multibox_loss_param {{ num_classes: 3 {fields} }}', SSD, message)
        for fields, message in [
            ("background_label_id: 3", "num_classes must count the background"),
            ("share_location: false", "mines with share_location only"),
            ("} loss_param { normalization: PRE_FIXED", "normalization is one of"),
            ("mining_type: NONE share_location: false", "needs 4 codes of each class and 3 scores for each prior"),
        ]
    ),
    *(
        (f'type: "PriorBox" prior_box_param {{ {fields} }}', [(1, 1, 2, 2), (1, 3, 20, 20)], message)
        for fields, message in [
            ("", "needs min_size"),
            ("min_size: 5 max_size: 4", "each above its min_size"),
            ("min_size: 5 aspect_ratio: 0", "aspect_ratio must be above 0"),
            ("min_size: 5 step_h: 2", "give either step, or both step_h and step_w"),
        ]
    ),
    *(
        (f'type: "{kind}" {fields}', [(2, 4, 5, 6), (3, 5)], message)
        for kind, fields, message in [
            ("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: -1 }", "spatial_scale above 0"),
            ("PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 1 }", "= 8 channels"),
            ("ROIAlign", "roi_align_param { pooled_h: 1 pooled_w: 1 sampling_ratio: 1000 }", "must be at most 256"),
            ("ROIAlign", "roi_align_param { pooled_h: 1 pooled_w: 1 } roi_pooling_param {}", "of the MS-CNN "),
        ]
    ),
    *(
        (f'type: "{kind}" {fields}', [(2, 16, 2, 2), (2, 10)], message)
        for kind, fields, message in [
            ("DetectionLoss", "detection_loss_param { side: 2 cls_num: 3 field_h: 9 }", "cls_num, field_h belong"),
            ("RegionLoss", "region_loss_param { num_class: 3 num: 2 biases: 1 biases: 1 }", "4 biases for num: 2"),
            ("Yolov3", "yolov3_param { num_class: 3 num: 1 biases: 1 biases: 1 mask: 2 }", "mask of num = 1 of the 1"),
        ]
    ),
    ('type: "Yolov3DetectionOutput" yolov3_detection_output_param { biases: 9 biases: 9 gaussian_box: true }', [IMAGE],
     "gaussian_box"),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "shapes", "message"), REFUSED)
def test_what_is_refused(layer: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(NetError, match=f'layer "it" .*{message}'):
        net_of_layer(layer, *shapes, tops=1)


@pytest.mark.parametrize(
    ("layer", "shapes", "tops"),
    [
        ('type: "Upsample"', [(1, 1, 2, 2)] * 2, 1),
        ('type: "CenterLoss" loss_weight: 1 center_loss_param { num_output: 16 }', [(3, 4), (3,)], 1),
        ('type: "MarginInnerProduct" margin_inner_product_param { num_output: 16 }', [(3, 4), (3,)], 2),
    ],
)
@pytest.mark.parametrize("index", [-1, 16, np.nan])
def test_indices_out_of_range_are_named(layer: str, shapes: list[tuple[int, ...]], tops: int, index: float) -> None:
    net = net_of_layer(layer, *shapes, tops=tops)
    net.blob("x1").data[...] = index
    with pytest.raises(NetError, match=r'layer "it" .*index .* at position 0 of "x1" .* is none of the rows 0 to 15'):
        net.forward()


NO_REGION, NO_BOX = 'row 1 of "x1" is no region of the 2 image', "has a row of ground truth"
OF_REGIONS = [(2, 0, 0, 3, 3), (-1, 0, 0, 3, 3), (0, 0, np.nan, 3, 3), (1, 0, 0, np.inf, 3)]
OF_BOXES = [(3, 0.5, 0.5, 0.1, 0.1), (-1, 0.5, 0.5, 0.1, 0.1), (0, 1.0, 0.5, 0.1, 0.1), (0, 0.5, np.nan, 0.1, 0.1)]
WRONG = [  # an example, its last bottom from an index on, and the error
    *((kind, 5, row, NO_REGION) for kind in ("ROIPooling", "PSROIPooling", "ROIAlign") for row in OF_REGIONS),
    *((kind, 15, row, f"image 1 {NO_BOX}") for kind in ("RegionLoss", "Yolov3") for row in OF_BOXES),
    *(
        ("DetectionLoss", 7, (1, 0, 0, 0, label, *[0] * 12, *box), f"image 0 {NO_BOX}")
        for label, *box in (OF_BOXES[0], OF_BOXES[-1])
    ),
    ("MultiBoxLoss", 8, (0, 3, 0, 0, 0, 1, 1, 0), "the label 3; labels are 0 to 2 without the background's, 0"),
    ("MultiBoxLoss", 8, (0, np.nan, 0, 0, 0, 1, 1, 0), "an object has the label nan"),
    ("MultiBoxLoss", 8, (2, 1, 0, 0, 0, 1, 1, 0), "an object is in image 2 of a batch of 2"),
]


@each_of(WRONG)
def test_rows_that_are_none(kind: str, start: int, row: tuple[float, ...], message: str) -> None:
    example = EXAMPLES[kind][0]
    net = net_of_layer(f'type: "{kind}" {example.text}', *example.bottoms, tops=example.tops)
    for index, values in example.values.items():
        blob, filled = net.blob(f"x{index}"), np.resize(np.float32(values), example.bottoms[index])
        if index == len(example.bottoms) - 1:
            filled.reshape(-1)[start : start + len(row)] = row
        blob.data[...] = blob.xp.asarray(filled)
    with pytest.raises(LayerError, match=f'layer "it" .*{message}'):
        net.forward()


def test_upsample_follows_the_size_of_its_bottom() -> None:
    """SegNet's fork keeps the size of the first one."""
    net = net_of_layer('type: "Upsample"', (1, 1, 2, 2), (1, 1, 2, 2), tops=1)
    for name in "x0", "x1":
        net.blob(name).reshape(1, 1, 3, 5)
    net.blob("x0").data[...], net.blob("x1").data[...] = 7, np.arange(45, 60).reshape(3, 5)
    net.forward()
    assert net.blob("y0").shape == (1, 1, 6, 10)
    np.testing.assert_array_equal(host(net.blob("y0").data).reshape(-1)[45:], 7)


def test_a_scale_of_zero_has_a_gradient() -> None:
    """SSD's fork divides by the scale."""
    net = net_of_layer('type: "Normalize" norm_param { scale_filler { value: 0 } }', IMAGE, tops=1)
    net.blob("x0").data[...] = 1
    net.forward()
    net.blob("y0").diff[...] = 1
    net.backward()
    assert float(host(net.layers[1].blobs[0].diff)) == pytest.approx(2 * 144**0.5)
