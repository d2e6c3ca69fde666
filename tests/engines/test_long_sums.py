"""Sums over a channel, of few values and of many: their error must not grow with the number."""

import numpy as np
import pytest

from fcaffe.engines.normalization import Normalizer
from fcaffe.net import Context
from fcaffe.net.blob import Blob
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

SHAPES = [(4, 16, 14, 14), (32, 16, 56, 56)]
MEAN, DEVIATION, EPS = 3.0, 0.5, 1e-5

# BVLC Caffe's errors for the larger shape are 1.3e-6 of the deviation and 1.9e-7 of the variance.
OF_MEAN, OF_VARIANCE, OF_SUM, OF_GRADIENT = 1e-6, 2e-7, 5e-7, 1e-6


def drawn(shape, seed, mean=MEAN, order="channels last"):
    values = (np.random.default_rng(seed).standard_normal(shape) * DEVIATION + mean).astype(np.float32)
    return in_order(values, order)


def in_order(values, order):
    if order == "C" or values.ndim < 3:
        return np.ascontiguousarray(values)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)


def per_channel(values, x):
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))


@pytest.mark.parametrize("order", ["channels last", "C"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_normalisation(shape, relu, order):
    ops, channels, axes = engine(), shape[1], (0, 2, 3)
    x, dy = drawn(shape, 0, order=order), drawn(shape, 1, 0.3, order)
    affine = drawn((channels,), 2, 1), drawn((channels,), 3, 0)
    mean, variance = np.empty((2, channels), np.float32)
    y, dx = np.empty_like(x), np.empty_like(x)
    gradients = np.empty((2, channels), np.float32)
    ops.batch_norm_moments(x, mean, variance)
    norm = Normalizer(mean, variance, EPS, *affine, relu)
    ops.batch_norm_apply(x, y, norm)
    ops.batch_norm_train_backward(x, dy, dx, norm, (gradients[0], gradients[1]))
    wide, slope = x.astype(np.float64), dy.astype(np.float64) * ((y > 0) if relu else 1)
    true_mean, true_variance = wide.mean(axes), wide.var(axes)
    assert np.abs(mean - true_mean).max() <= OF_MEAN * DEVIATION
    assert np.abs(variance / true_variance - 1).max() <= OF_VARIANCE
    deviation = per_channel(np.sqrt(true_variance + EPS), x)
    normalized = (wide - per_channel(true_mean, x)) / deviation
    count = x.size // channels
    dscale, dshift = (slope * normalized).sum(axes), slope.sum(axes)
    magnitude = np.abs(slope * normalized).sum(axes)
    assert (np.abs(gradients[0] - dscale) <= OF_SUM * magnitude).all()
    assert (np.abs(gradients[1] - dshift) <= OF_SUM * np.abs(slope).sum(axes)).all()
    centred = slope - per_channel(dshift, x) / count - normalized * per_channel(dscale, x) / count
    expected = per_channel(affine[0].astype(np.float64), x) / deviation * centred
    assert np.abs(dx - expected).max() <= OF_GRADIENT * np.abs(expected).max()


@pytest.mark.parametrize("ratio", [1e3, 1e-3])
def test_moments_far_from_and_near_to_zero(ratio):
    """The mean is many times the deviation, or nothing beside it."""
    mean, variance = np.empty((2, 16), np.float32)
    x = drawn(SHAPES[1], 4, ratio * DEVIATION)
    engine().batch_norm_moments(x, mean, variance)
    true = x.astype(np.float64)
    assert np.abs(mean - true.mean((0, 2, 3))).max() <= 1e-7 * max(1, ratio) * DEVIATION
    assert np.abs(variance / true.var((0, 2, 3)) - 1).max() <= OF_VARIANCE


@pytest.mark.parametrize("order", ["channels last", "C"])
@pytest.mark.parametrize("shape", [*SHAPES, (784, 16), (100352, 16), (5, 2000, 3, 3), (100352, 1)])
def test_sums_of_channels(shape, order):
    dy = drawn(shape, 5, order=order)
    true = dy.astype(np.float64).sum((0, *range(2, dy.ndim)))
    ops, found = engine(), np.empty(shape[1], np.float32)
    ops.bias_backward(dy, found, False)
    for sums in (found, ops.channel_sums(dy)):
        assert np.abs(sums / true - 1).max() <= OF_SUM


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_over_workers(shape):
    """With batches of different sizes, and of different values."""
    x = drawn(shape, 8)
    x[: shape[0] // 4] += 4
    parts = []
    for batch in np.split(x, [shape[0] // 4, shape[0] // 2]):
        own_mean, own_variance = np.empty((2, shape[1]), np.float32)
        engine().batch_norm_moments(batch, own_mean, own_variance)
        parts.append(np.concatenate([np.float32([batch.size // shape[1]]), own_mean, own_variance]))
    mean, variance = np.empty((2, shape[1]), np.float32)
    engine().merge_moments(np.stack(parts), mean, variance)
    true = x.astype(np.float64)
    assert np.abs(mean - true.mean((0, 2, 3))).max() <= OF_MEAN * DEVIATION
    assert np.abs(variance / true.var((0, 2, 3)) - 1).max() <= OF_VARIANCE


def passed(kind, text, shape):
    """A layer after a forward pass, its bottoms and its tops."""
    param = parse_text(f'name: "it" type: "{kind}" {text}', pb.LayerParameter)
    layer = create_layer(param, Context(engine(), CaffeRandom(1)))
    bottom, top = [Blob(np, shape, channels_last=True)], [Blob(np, (), channels_last=True)]
    bottom[0].data[...] = drawn(shape, 9)
    layer.initialize(bottom, top)
    layer.forward(bottom, top)
    return layer, bottom, top


LAYERS = {
    "Reduction": ("reduction_param { axis: 2 }", lambda x: x.sum((2, 3))),
    "MVN": ("mvn_param { normalize_variance: false }", lambda x: x - x.mean((2, 3), keepdims=True)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_sum(kind):
    text, expected = LAYERS[kind]
    _, bottom, top = passed(kind, text, (1, 3, 320, 320))
    true = expected(bottom[0].data.astype(np.float64))
    assert np.abs(top[0].data - true).max() <= OF_SUM * np.abs(true).max()


@pytest.mark.parametrize("kind", ["Scale", "Bias"])
@pytest.mark.parametrize("axis", [1, 2])
def test_gradients_of_factors(kind, axis):
    layer, bottom, top = passed(kind, f"{kind.lower()}_param {{ axis: {axis} }}", (32, 16, 56, 56))
    top[0].diff[...] = drawn(top[0].shape, 11)
    layer.backward(top, [True], bottom)
    products = top[0].diff.astype(np.float64) * (bottom[0].data if kind == "Scale" else 1)
    true = products.sum(tuple(each for each in range(4) if each != axis))
    assert np.abs(layer.blobs[0].diff / true - 1).max() <= OF_SUM
