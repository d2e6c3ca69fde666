"""Pooling by its definition, window by window, for geometries drawn at random: also where windows lie outside."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.errors import LayerError
from fcaffe.net import Blob, Context
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine, host

pytestmark = pytest.mark.usefixtures("on_each_engine")


def by_definition(method: str, x: np.ndarray, dy: np.ndarray, starts: list, ends: list, pad: tuple) -> tuple:
    """The maxima or averages, and the gradient of x, in float64. A window's area includes padding."""
    y, dx = np.full(dy.shape, np.finfo(np.float32).min, np.float64), np.zeros(x.shape)
    for n, c, *at in np.ndindex(*dy.shape):
        begin = [start[i] for start, i in zip(starts, at, strict=True)]
        end = [min(e[i], n + p) for e, i, n, p in zip(ends, at, x.shape[2:], pad, strict=True)]
        part = (n, c, *(slice(max(0, b), min(e, n)) for b, e, n in zip(begin, end, x.shape[2:], strict=True)))
        window, index = x[part], (n, c, *at)
        if method == "AVE":
            area = np.prod([e - b for b, e in zip(begin, end, strict=True)], dtype=float)
            y[index] = window.sum() / area if area else np.nan
            dx[part] += dy[index] / area if window.size else 0
        elif window.size:
            where = np.unravel_index(window.argmax(), window.shape)
            y[index] = window[where]
            dx[part][where] += dy[index]
    return y, dx


@pytest.mark.parametrize("seed", range(36))
@pytest.mark.parametrize(("method", "tops"), [("MAX", 1), ("MAX", 2), ("AVE", 1)])
def test_windows_over_one_two_or_three_axes(method, tops, seed):
    random, axes = np.random.default_rng(seed), seed % 3 + 1
    kernel, stride, size = random.integers(1, 5, axes), random.integers(1, 6, axes), random.integers(4, 9, axes)
    pad = random.integers(0, kernel) if seed % 2 else (0,) * axes
    each = {"kernel_size": kernel, "stride": stride, "pad": pad}
    text = " ".join(f"{name}_3d: {number}" for name, numbers in each.items() for number in numbers)
    if axes == 2:
        fields = [(name.removesuffix("_size"), *pair) for name, pair in each.items()]
        text = " ".join(f"{name}_h: {high} {name}_w: {wide}" for name, high, wide in fields)
    param = parse_text(f'name: "it" type: "Pooling" pooling_param {{ pool: {method} {text} }}', pb.LayerParameter)
    layer = create_layer(param, Context(engine(), CaffeRandom(1)))
    xp = layer.context.engine.xp
    bottom = Blob(xp, (2, 3, *map(int, size)), channels_last=True)
    made = [Blob(xp, (), channels_last=True) for _ in range(tops)]
    x = np.round(random.normal(size=bottom.shape), 1).astype(np.float32)  # with ties
    bottom.data[...] = xp.asarray(x)
    layer.initialize([bottom], made)
    dy = random.normal(size=made[0].shape).astype(np.float32)
    made[0].diff[...] = xp.asarray(dy)
    with np.errstate(divide="ignore", invalid="ignore"):  # by areas of 0, as in a net's passes
        layer.forward([bottom], made)
        layer.backward(made, [True], [bottom])
    starts = [np.arange(o) * s - p for o, s, p in zip(dy.shape[2:], stride, pad, strict=True)]
    ends = [start + k for start, k in zip(starts, kernel, strict=True)]
    for o, n, k, s, p in zip(dy.shape[2:], size, kernel, stride, pad, strict=True):
        counted = -((k - n - 2 * p) // s) + 1  # ceil
        assert o == counted - (any(pad) and (counted - 1) * s >= n + p)
    y, dx = by_definition(method, x, dy, starts, ends, pad)
    np.testing.assert_allclose(host(made[0].data), y, rtol=1e-5 * (method == "AVE"), atol=1e-6 * (method == "AVE"))
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
    if layer.noise:
        layer.noise.uniform = lambda shape: dice
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
    if phase == "TEST":
        with pytest.raises(LayerError, match="has a gradient in phase TRAIN only"):
            layer.backward([top], [True], [bottom])
        return
    layer.backward([top], [True], [bottom])
    np.testing.assert_allclose(host(bottom.diff), dx, atol=1e-5)
