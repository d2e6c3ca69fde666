"""Layers of forks that reorder, normalise and resize, and losses of faces: what they refuse, and where they differ from
the forks' code on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.errors import NetError
from fcaffe.net import Net
from tests.conftest import make_net
from tests.engine_choice import host

pytestmark = pytest.mark.usefixtures("on_each_engine")

IMAGE = (2, 4, 6, 6)


def net_of(layer: str, *shapes: tuple[int, ...], tops: int = 1, phase: str = "TRAIN") -> Net:
    """A net of one layer "it" with bottoms "x0", "x1" ... and tops "y0", "y1" ..., unless the text gives them."""
    inputs = "\n".join(
        f'layer {{ name: "in{index}" type: "Input" top: "x{index}" input_param {{ shape {{ '
        f"{' '.join(f'dim: {n}' for n in shape)} }} }} }}"
        for index, shape in enumerate(shapes)
    )
    ends = [f'bottom: "x{index}"' for index in range(len(shapes))] + [f'top: "y{index}"' for index in range(tops)]
    return make_net(f'force_backward: true {inputs} layer {{ name: "it" {" ".join(ends)} {layer} }}', phase)


REFUSED = [
    ('type: "Permute" permute_param { order: 0 order: 0 }', [IMAGE], "lists the axes .*each at most once"),
    ('type: "Permute" permute_param { order: 4 }', [IMAGE], "lists the axes .*each at most once"),
    ('type: "Transpose" transpose_param { dim: 0 dim: 1 }', [IMAGE], "list all of the bottom's shape"),
    ('type: "Reverse" reverse_param { axis: 4 }', [IMAGE], "axis 4 is out of range"),
    ('type: "Flip"', [(2, 3)], "needs a bottom of four axes"),
    ('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', [IMAGE], "group 3 must divide the 4 channels"),
    ('type: "ShuffleChannel"', [IMAGE], "group 0 must divide"),
    ('type: "Reorg" reorg_param { stride: 3 }', [IMAGE], "must divide the channels"),
    ('type: "Reorg" reorg_param { stride: 2 }', [(1, 4, 5, 6)], "its height and width"),
    ('type: "Reorg"', [IMAGE], "the square of reorg_param.stride 0"),
    ('type: "Normalize"', [(3,)], "needs a bottom of two axes or more"),
    ('type: "Normalize" norm_param {} normalize_param {}', [IMAGE], "norm_param is a field of .*SSD.*caffe-windows"),
    ('type: "Normalize" normalize_param { normalize_type: "L3" }', [IMAGE], 'must be "L2" or "L1", not "L3"'),
    ('type: "BN" bn_param { momentum: 0.9 bn_mode: LEARN }', [IMAGE], "momentum, .*PSPNet.*bn_mode, .*segnet"),
    ('type: "Interp"', [IMAGE], "needs height and width, zoom_factor, or shrink_factor"),
    ('type: "Interp" interp_param { zoom_factor: 2 pad_beg: 1 }', [IMAGE], "0 or less, they must leave something"),
    ('type: "Interp" interp_param { zoom_factor: 2 pad_beg: -3 pad_end: -3 }', [IMAGE], "they must leave something of"),
    ('type: "Interp" interp_param { height: -1 width: 2 }', [IMAGE], "would make maps of"),
    ('type: "Upsample" upsample_param { scale: 3 pad_out_h: true }', [IMAGE] * 2, "are for scales of 2 only"),
    ('type: "Upsample"', [IMAGE, (2, 4, 3, 6)], "needs a mask of the shape"),
    ('type: "Axpy"', [(2, 3), IMAGE, IMAGE], r"needs bottoms \(N, C\) and twice"),
    ('type: "CenterLoss"', [(3, 4), (3,)], "num_output is missing"),
    ('type: "CenterLoss" center_loss_param { num_output: 2 }', [(3, 4), (2,)], "needs one label per sample"),
    ('type: "TripletLoss"', [(3, 4), (3, 4), (3, 5)], "must have the same shape"),
    (
        'type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true class_weighting: 1 }',
        [(3, 4), (3,)],
        "class_weighting is given 1 times for the 4 classes",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "shapes", "message"), REFUSED)
def test_what_is_refused(layer: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(NetError, match=f'layer "it" .*{message}'):
        net_of(layer, *shapes)


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
    net = net_of(layer, *shapes, tops=tops)
    net.blob("x1").data[...] = index
    with pytest.raises(NetError, match=r'layer "it" .*index .* at position 0 of "x1" .* is none of the rows 0 to 15'):
        net.forward()


def test_upsample_follows_the_size_of_its_bottom() -> None:
    """SegNet's fork keeps the size of the first one."""
    net = net_of('type: "Upsample"', (1, 1, 2, 2), (1, 1, 2, 2))
    for name in "x0", "x1":
        net.blob(name).reshape(1, 1, 3, 5)
    net.blob("x0").data[...], net.blob("x1").data[...] = 7, np.arange(45, 60).reshape(3, 5)
    net.forward()
    assert net.blob("y0").shape == (1, 1, 6, 10)
    np.testing.assert_array_equal(host(net.blob("y0").data).reshape(-1)[45:], 7)


def test_a_scale_of_zero_has_a_gradient() -> None:
    """SSD's fork divides by the scale."""
    net = net_of('type: "Normalize" norm_param { scale_filler { value: 0 } }', IMAGE)
    net.blob("x0").data[...] = 1
    net.forward()
    net.blob("y0").diff[...] = 1
    net.backward()
    assert float(host(net.layers[1].blobs[0].diff)) == pytest.approx(2 * 144**0.5)


def test_gradients_of_segnets_scale_add_up() -> None:
    """SegNet's fork forgets all but the last pass."""
    net = net_of('type: "BN" bn_param { bn_mode: LEARN }', IMAGE)
    net.blob("x0").data[...] = np.arange(288).reshape(IMAGE)
    found = []
    for _ in range(2):
        net.forward()
        net.blob("y0").diff[...] = 1
        net.backward()
        found.append(host(net.layers[1].blobs[1].diff))
    np.testing.assert_allclose(found[1], 2 * found[0])
