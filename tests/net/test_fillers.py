"""Fillers against the weights that BVLC Caffe fills for known seeds: the same bits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import NetError
from fcaffe.net.fillers import FILLERS, fill
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom

GOLDEN = Path(__file__).parents[1] / "golden" / "fillers"
SEEDS = [1, 42, 1701]
TIME_STEPS = 3  # of the recurrent layers in fill_all

# What fills a layer's first and second blob, and Caffe's defaults where the prototxt says nothing.
FILLED_BY = {
    "Convolution": ("convolution_param", "weight_filler", "bias_filler"),
    "Deconvolution": ("convolution_param", "weight_filler", "bias_filler"),
    "InnerProduct": ("inner_product_param", "weight_filler", "bias_filler"),
    "Embed": ("embed_param", "weight_filler", "bias_filler"),
    "Scale": ("scale_param", "filler", "bias_filler"),
    "Bias": ("bias_param", "filler", ""),
    "PReLU": ("prelu_param", "filler", ""),
}
DEFAULTS = {"Scale": "value: 1", "PReLU": "value: 0.25"}


def filler(text: str = "") -> pb.FillerParameter:
    return parse_text(text, pb.FillerParameter)


def filled(shape: tuple[int, ...], text: str, seed: int = 1) -> np.ndarray:
    array = np.full(shape, np.nan, np.float32)
    fill(array, filler(text), CaffeRandom(seed))
    return array


def fillings(layer: pb.LayerParameter) -> Iterator[tuple[int, pb.FillerParameter]]:
    """The blobs of a layer in the order in which they are filled, each with its filler."""
    if layer.type in ("LSTM", "RNN"):
        weights, bias = layer.recurrent_param.weight_filler, layer.recurrent_param.bias_filler
        yield from [(0, weights), (1, bias)]
        if layer.type == "RNN":
            yield 2, weights  # of the static input
        for _ in range(TIME_STEPS):
            yield from [(2, weights)] if layer.type == "LSTM" else [(3, weights), (4, weights), (5, bias)]
    elif layer.type in FILLED_BY:
        name, *fields = FILLED_BY[layer.type]
        param = getattr(layer, name)
        for i, field in enumerate(fields):
            if field:
                given = i or param.HasField(field) or layer.type not in DEFAULTS
                yield i, getattr(param, field) if given else filler(DEFAULTS[layer.type])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("net", ["fill_all", "fill_big"])
def test_fills_a_net_as_caffe_does(net: str, seed: int) -> None:
    golden = np.load(GOLDEN / f"{net}_seed{seed}.npz")
    random = CaffeRandom(seed)
    seen = set()
    for layer in parse_text(str(golden["prototxt"]), pb.NetParameter).layer:
        for i, parameter in fillings(layer):
            key = f"{layer.name}/{i}"
            if key not in golden:
                continue  # no bias
            values = np.empty(golden[key].shape, np.float32)
            fill(values, parameter, random)
            # What a sharing layer fills is replaced by the owner's, and later time steps by the first.
            if layer.name != "sharer" and key not in seen:
                np.testing.assert_array_equal(values.view(np.uint32), golden[key].view(np.uint32), err_msg=key)
            seen.add(key)
    assert seen == set(golden.files) - {"prototxt", "seed"}


def test_writes_into_any_strides() -> None:
    channels_last = np.empty((2, 4, 5, 3), np.float32).transpose(0, 3, 1, 2)
    fill(channels_last, filler('type: "gaussian"'), CaffeRandom(3))
    np.testing.assert_array_equal(channels_last, filled((2, 3, 4, 5), 'type: "gaussian"', seed=3))


def test_scalar_blob() -> None:
    assert filled((), "value: 2.5") == 2.5
    for kind in set(FILLERS) - {"constant", "bilinear"}:
        assert np.isfinite(filled((), f'type: "{kind}"')), kind
    assert filled((), 'type: "positive_unitball"') == 1


def test_sparse_keeps_the_asked_share() -> None:
    values = filled((100, 1000), 'type: "gaussian" sparse: 20')
    assert np.count_nonzero(values) / values.size == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(("norm", "fan"), [("FAN_IN", 5 * 9), ("FAN_OUT", 20 * 9), ("AVERAGE", (5 * 9 + 20 * 9) / 2)])
def test_spread_follows_the_fan(norm: str, fan: float) -> None:
    msra = filled((20, 5, 3, 3), f'type: "msra" variance_norm: {norm}')
    assert msra.std() == pytest.approx(np.sqrt(2 / fan), rel=0.1)
    xavier = filled((20, 5, 3, 3), f'type: "xavier" variance_norm: {norm}')
    assert np.abs(xavier).max() == pytest.approx(np.sqrt(3 / fan), rel=0.02)


@pytest.mark.parametrize(
    ("shape", "text", "message"),
    [
        ((3,), 'type: "gausian"', r"unknown filler type 'gausian' \(did you mean gaussian\?\).*bilinear, constant"),
        ((3,), 'type: "he"', "unknown filler type 'he'; known types: bilinear"),
        ((0, 3), 'type: "xavier"', "nothing to fill"),
        ((3,), 'type: "uniform" sparse: 1', "gaussian filler only"),
        ((3,), 'type: "uniform" min: 2', r"min \(2\).*max \(1\)"),
        ((3,), 'type: "gaussian" std: 0', "std must be above 0"),
        ((3, 4), 'type: "gaussian" sparse: 4', "sparse must be from 0"),
        ((3, 4), 'type: "bilinear"', "four axes"),
        ((1, 1, 4, 5), 'type: "bilinear"', "square"),
    ],
)
def test_errors_say_what_is_wrong(shape: tuple[int, ...], text: str, message: str) -> None:
    with pytest.raises(NetError, match=message):
        filled(shape, text)


def test_every_caffe_filler_is_known() -> None:
    assert set(FILLERS) == {"constant", "uniform", "gaussian", "xavier", "msra", "positive_unitball", "bilinear"}
