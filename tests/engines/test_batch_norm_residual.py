"""Batch normalisation with a scale, a sum and ReLU behind it, as one operator, against the layers in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine_choice import engine
from tests.engines.test_long_sums import drawn, per_channel

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

EPS = 1e-5


@pytest.mark.parametrize("orders", [("channels last",) * 2, ("C", "C"), ("channels last", "C"), ("C", "channels last")])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (4, 24, 14, 9), (3, 7, 30, 31), (40, 256)])
@pytest.mark.parametrize("both", [False, True])
def test_forward_and_backward(shape: tuple[int, ...], orders: tuple[str, str], both: bool) -> None:
    ops, axes, channels = engine(), (0, *range(2, len(shape))), shape[1]
    x, y, dx = (drawn(shape, seed, 0.2, orders[0]) for seed in range(3))
    other, dother, *dys = (drawn(shape, seed, 0.1, orders[1]) for seed in range(3, 7 if both else 6))
    affine, gradients = drawn((2, channels), 8, 1), np.empty((2, channels), np.float32)
    mean, variance = np.empty((2, channels), np.float32)
    memory = np.empty(int(ops.batch_norm_memory * x.size) + 1, np.float32)
    ops.batch_norm_moments(x, mean, variance)
    ops.batch_norm_add_relu(x, other, y, mean, variance, (affine[0], affine[1]), EPS)
    numbers = mean, variance, (affine[0], affine[1]), (gradients[0], gradients[1]), EPS, memory
    ops.batch_norm_add_relu_backward(x, y, dys, dother, dx, *numbers)

    wide = x.astype(np.float64)
    deviation = per_channel(np.sqrt(wide.var(axes) + EPS), x)
    normalized = (wide - per_channel(wide.mean(axes), x)) / deviation
    scale, shift = (per_channel(each.astype(np.float64), x) for each in affine)
    before = normalized * scale + shift + other
    np.testing.assert_allclose(y, np.maximum(before, 0), atol=3e-6)
    slope = sum(dy.astype(np.float64) for dy in dys) * (y > 0)
    np.testing.assert_allclose(dother, slope, atol=1e-6)
    of_scale, of_shift = (slope * normalized).sum(axes), slope.sum(axes)
    assert np.abs(gradients - [of_scale, of_shift]).max() <= 2e-6 * np.abs(slope).sum(axes).max()
    count = x.size // channels
    expected = (
        scale / deviation * (slope - per_channel(of_shift, x) / count - normalized * per_channel(of_scale, x) / count)
    )
    assert np.abs(dx - expected).max() <= 3e-6 * np.abs(expected).max()
