"""Pooling by its definition, window by window, for geometries drawn at random: also where windows lie outside."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.net import Blob, Context
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine, host

pytestmark = pytest.mark.usefixtures("on_each_engine")


def windows_of(n: int, kernel: int, stride: int, pad: int, places: int) -> list[tuple[int, int]]:
    """Begin and end of each window along an axis, without what lies outside the image."""
    starts = [place * stride - pad for place in range(places)]
    return [(max(start, 0), min(start + kernel, n)) for start in starts]


def by_definition(x: np.ndarray, dy: np.ndarray, rows: list, columns: list) -> tuple[np.ndarray, np.ndarray]:
    """The maxima, and the gradient of x, in float64."""
    y, dx = np.full(dy.shape, np.finfo(np.float32).min, np.float64), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*dy.shape):
        (top, bottom), (left, right) = rows[i], columns[j]
        window = x[n, c, top:bottom, left:right]
        if window.size:
            h, w = np.unravel_index(window.argmax(), window.shape)
            y[n, c, i, j] = window[h, w]
            dx[n, c, top + h, left + w] += dy[n, c, i, j]
    return y, dx


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("tops", [1, 2])
def test_maxima_and_their_gradient(tops, seed):
    random = np.random.default_rng(seed)
    kernel, stride, size = random.integers(1, 5, 2), random.integers(1, 6, 2), random.integers(4, 9, 2)
    pad = random.integers(0, kernel) if seed % 2 else (0, 0)
    fields = zip(("kernel", "stride", "pad"), (kernel, stride, pad), strict=True)
    text = " ".join(f"{name}_h: {pair[0]} {name}_w: {pair[1]}" for name, pair in fields)
    param = parse_text(f'name: "it" type: "Pooling" pooling_param {{ {text} }}', pb.LayerParameter)
    layer = create_layer(param, Context(engine(), CaffeRandom(1)))
    xp = layer.context.engine.xp
    bottom = Blob(xp, (2, 3, *map(int, size)), channels_last=True)
    made = [Blob(xp, (), channels_last=True) for _ in range(tops)]
    x = np.round(random.normal(size=bottom.shape), 1).astype(np.float32)  # with ties
    bottom.data[...] = xp.asarray(x)
    layer.initialize([bottom], made)
    layer.forward([bottom], made)
    dy = random.normal(size=made[0].shape).astype(np.float32)
    made[0].diff[...] = xp.asarray(dy)
    layer.backward(made, [True], [bottom])
    spans = [windows_of(*numbers) for numbers in zip(size, kernel, stride, pad, dy.shape[2:], strict=True)]
    y, dx = by_definition(x, dy, *spans)
    np.testing.assert_array_equal(host(made[0].data), y)
    np.testing.assert_allclose(host(bottom.diff), dx, atol=1e-5)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_stochastic(phase):
    """As Caffe's GPU code: the first value at which the running sum reaches the dice's part of the window's sum; for
    testing, the values weighted by themselves."""
    random = np.random.default_rng(3)
    param = parse_text(
        f'name: "it" type: "Pooling" phase: {phase} '
        "pooling_param { pool: STOCHASTIC kernel_h: 3 kernel_w: 2 stride: 2 }",
        pb.LayerParameter,
    )
    layer = create_layer(param, Context(engine(), CaffeRandom(1)))
    xp = layer.context.engine.xp
    bottom, top = Blob(xp, (2, 3, 7, 8), channels_last=True), Blob(xp, (), channels_last=True)
    x = random.random(bottom.shape).astype(np.float32)
    x[0, 0] = 0
    bottom.data[...] = xp.asarray(x)
    layer.initialize([bottom], [top])
    dice = random.random(top.shape).astype(np.float32)
    layer.context.uniform = lambda name, shape: dice
    layer.forward([bottom], [top])
    dy = random.normal(size=top.shape).astype(np.float32)
    top.diff[...] = xp.asarray(dy)
    y, dx = np.zeros(top.shape), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*top.shape):
        window = x[n, c, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2]
        values = window.ravel().astype(np.float64)
        if phase == "TEST":
            y[n, c, i, j] = (values**2).sum() / max(values.sum(), 1e-38)
            continue
        h, w = np.unravel_index(np.argmax(values.cumsum() >= dice[n, c, i, j] * values.sum()), window.shape)
        y[n, c, i, j] = window[h, w]
        dx[n, c, 2 * i + h, 2 * j + w] += dy[n, c, i, j]
    np.testing.assert_allclose(host(top.data), y, rtol=1e-6)
    if phase == "TRAIN":
        layer.backward([top], [True], [bottom])
        np.testing.assert_allclose(host(bottom.diff), dx, atol=1e-6)
