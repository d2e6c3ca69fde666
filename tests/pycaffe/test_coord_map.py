"""pycaffe's coord_map: where a place in one blob lies in another."""

from __future__ import annotations

from typing import Any

import pytest

from fcaffe.pycaffe.coord_map import (
    UndefinedMapException,
    coord_map,
    coord_map_from_to,
    crop,
    crop_params,
)
from fcaffe.pycaffe.net_spec import NetSpec, layers, params


def spec(kernel: Any = 3, stride: Any = 1, pad: Any = 0, pool: int = 2, up: int = 2, up_pad: int = 0) -> NetSpec:
    """A convolution, a pooling and a Deconvolution that goes back to the size before."""
    n = NetSpec()
    n.data = layers.Input(shape={"dim": [2, 1, 100, 100]})
    n.conv = layers.Convolution(n.data, num_output=10, kernel_size=kernel, stride=stride, pad=pad)
    n.pool = layers.Pooling(n.conv, pool=params.Pooling.MAX, kernel_size=pool, stride=pool)
    n.up = layers.Deconvolution(
        n.pool, convolution_param={"num_output": 1, "kernel_size": 2 * up, "stride": up, "pad": up_pad}
    )
    return n


@pytest.mark.parametrize(
    ("n", "shift"),
    [
        (spec(), 0),
        (spec(pool=4, up=4), -1),
        (spec(pad=7), -7),
        (spec(up_pad=7), 7),
        (spec(pad=7, up_pad=7), 0),
    ],
)
def test_the_map_from_an_upsampled_blob_to_the_input(n: NetSpec, shift: int) -> None:
    axis, a, b = coord_map_from_to(n.up, n.data)
    assert (axis, a.tolist(), b.tolist()) == (1, [1], [shift])


def test_each_axis_has_its_own_scale_and_shift() -> None:
    n = spec([3, 5], [1, 2], [0, 10])
    axis, a, b = coord_map_from_to(n.up, n.data)
    assert axis == 1
    for place, one in enumerate([spec(3, 1, 0), spec(5, 2, 10)]):
        _, a_one, b_one = coord_map_from_to(one.up, one.data)
        assert (a[place], b[place]) == (a_one[0], b_one[0])


def test_layers_that_keep_places_and_a_crop() -> None:
    n = spec()
    n.relu = layers.ReLU(n.up)
    n.crop = layers.Crop(n.relu, n.data, axis=2, offset=4)
    assert coord_map_from_to(n.relu, n.data)[1:] == coord_map_from_to(n.up, n.data)[1:]
    axis, a, b = coord_map_from_to(n.crop, n.data)
    assert (axis, a, b) == (1, 1, 4)
    assert coord_map(n.relu.fn) == (None, 1, 0)
    assert crop_params(n.crop.fn) == (2, 4)


def test_the_second_bottom_of_a_crop_leads_nowhere() -> None:
    n = spec()
    n.other = layers.Input(shape={"dim": [1, 1, 9, 9]})
    n.crop = layers.Crop(n.up, n.other)
    with pytest.raises(RuntimeError, match="Could not compute map between tops"):
        coord_map_from_to(n.crop, n.other)


def test_crop_makes_the_layer() -> None:
    n = spec(pool=4, up=4, pad=8)
    n.score = crop(n.up, n.data)
    made = n.to_proto().layer[-1]
    assert (made.type, list(made.bottom), made.crop_param.axis) == ("Crop", ["up", "data"], 2)
    assert list(made.crop_param.offset) == [9]
    same = crop(layers.ReLU(n.data), n.data)
    assert same.fn.params == {"crop_param": {"axis": 2, "offset": [0]}}


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (spec(pool=3), "scale mismatch on crop"),
        (spec(up_pad=10), "cannot crop negative offset"),
        (spec(kernel=4, pad=2), "cannot crop noninteger offset"),
    ],
)
def test_crops_that_cannot_be(n: NetSpec, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        crop(n.up, n.data)


def test_layers_without_a_map() -> None:
    n = spec()
    n.ip = layers.InnerProduct(n.up, num_output=1)
    with pytest.raises(UndefinedMapException, match="InnerProduct"):
        coord_map(n.ip.fn)
    with pytest.raises(RuntimeError):
        coord_map_from_to(n.ip, n.data)
