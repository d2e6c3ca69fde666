"""The GPU's batch normalisation on the stand-ins where numbers are hard: parts of a batch, outliers, no numbers.

tests/engines/test_operators.py compares all operators with plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.engines.normalization import Normalizer, Whole
from tests.engines.cuda.device_arrays import blank, launched, on_device, random, to_host

EPS = 1e-5
PLAIN = NumpyEngine()
Engines = Callable[..., CudaEngine]


def assert_near(actual: Any, expected: np.ndarray, digits: float = 4e-6) -> None:
    """Within these digits of the largest value."""
    largest = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(to_host(actual), expected, rtol=0, atol=digits * largest + 1e-30)


def test_lrn_beyond_the_channels(cuda_engine: Engines) -> None:
    """There scales may be 0, which is nobody's business."""
    engine, x = cuda_engine(), np.ones((1, 8, 2, 2), np.float32)
    x[:, [0, 7]] = 0
    y, dx, scale = (np.empty(x.shape, np.float64) for _ in range(3))
    dx_there = blank(x.shape)
    with np.errstate(divide="ignore"):
        PLAIN.lrn_forward(x.astype(np.float64), y, scale, 5, 1.0, 0.75, 0.0)
    PLAIN.lrn_backward(x.astype(np.float64), scale, x, dx, 5, 1.0, 0.75, 0.0)
    engine.lrn_backward(on_device(x), None, on_device(x), dx_there, 5, 1.0, 0.75, 0.0)
    assert_near(dx_there, dx)


@pytest.mark.parametrize("math", ["fp32", "bf16"])
@pytest.mark.parametrize("channels", [5, 24])
def test_sum_and_relu_of_a_residual_block(math: str, channels: int, cuda_engine: Engines) -> None:
    """In one kernel, with NaN and infinities as ReLU has them."""
    engine = cuda_engine(math=math)
    dtype = engine.half_dtype or np.float32
    x, other = random((3, channels, 7, 5), dtype), random((3, channels, 7, 5), dtype, 5)
    other[0, 1, 0, :3] = np.nan, np.inf, -np.inf
    pair, y, expected = random((2, channels)), blank(x.shape, dtype), np.empty(x.shape, np.float64)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    norm = Normalizer(*map(on_device, (mean, variance)), EPS, *map(on_device, pair))
    launched()
    engine.batch_norm_add_relu(on_device(x, dtype), on_device(other, dtype), y, norm)
    assert [name.split("<")[0] for name in launched()] == ["batch_norm_apply"]
    with np.errstate(all="ignore"):
        PLAIN.batch_norm_add_relu(
            x.astype(np.float64), other.astype(np.float64), expected, Normalizer(mean, variance, EPS, *pair)
        )
    digits = 1e-5 if math == "fp32" else 2**-8
    np.testing.assert_allclose(to_host(y), expected, rtol=digits, atol=digits)


@pytest.mark.parametrize("channels", [3, 8])
def test_variance_far_from_zero_and_of_outliers(channels: int, cuda_engine: Engines) -> None:
    engine, far, outlier = cuda_engine(), random((4, channels, 16, 17)) + 1000, random((4, channels, 16, 17))
    outlier[0, :, 0, 0] = 1e4
    for x in (far, outlier):
        mean, variance = blank((channels,)), blank((channels,))
        engine.batch_norm_moments(on_device(x), mean, variance)
        exact = x.astype(np.float64)
        deviation = exact.std(axis=(0, 2, 3))
        np.testing.assert_allclose(to_host(mean) / deviation, exact.mean(axis=(0, 2, 3)) / deviation, 2e-6, 1e-6)
        np.testing.assert_allclose(to_host(variance), exact.var(axis=(0, 2, 3)), rtol=2e-5)


def test_relu_of_no_number_is_none(cuda_engine: Engines) -> None:
    x = random((2, 8, 2, 2))
    x[0, 3, 0, 0] = np.nan
    y, zero, one = blank(x.shape), on_device(np.zeros(8)), on_device(np.ones(8))
    cuda_engine().batch_norm_apply(on_device(x), y, Normalizer(zero, one, 0.0, relu=True))
    np.testing.assert_array_equal(to_host(y), np.maximum(x, 0))


@pytest.mark.parametrize(("math", "digits"), [("fp32", 4e-6), ("fp16", 1e-3), ("bf16", 8e-3)])
def test_batch_norm_of_two_workers(math: str, digits: float, cuda_engine: Engines) -> None:
    """Each has a part of the batch; together they compute what one computes with all of it. The size of the whole batch
    may be an array."""
    engine = cuda_engine(math=math)
    xp, dtype, parts = engine.xp, engine.half_dtype or np.float32, [slice(2), slice(2, None)]
    x, dy, pair = random((5, 16, 4, 3), dtype) + 1, random((5, 16, 4, 3), dtype, 1), random((2, 16))
    exact = [each.astype(np.float64) for each in (x.astype(dtype), dy)]
    whole_norm = Normalizer(np.empty(16), np.empty(16), EPS, *pair, True)
    expected_dx, expected = np.empty(x.shape), [np.empty(16), np.empty(16)]
    PLAIN.batch_norm_moments(exact[0], whole_norm.mean, whole_norm.variance)
    PLAIN.batch_norm_train_backward(*exact, expected_dx, whole_norm, expected)

    norm, own = Normalizer(blank((16,)), blank((16,)), EPS, *map(on_device, pair), True), []
    for part in parts:
        engine.batch_norm_moments(on_device(x[part], dtype), norm.mean, norm.variance)
        own.append(xp.concatenate([xp.full(1, x[part].size // 16, np.float32), norm.mean, norm.variance]))
    engine.merge_moments(xp.stack(own), norm.mean, norm.variance)
    assert_near(norm.mean, whole_norm.mean)
    assert_near(norm.variance, whole_norm.variance)
    sums: list[Any] = []

    def backward(part: slice, count: Any, total: Any) -> tuple[Any, ...]:
        gradients, dx = (blank((16,)), blank((16,))), blank(x[part].shape, dtype)
        whole = Whole(count, lambda mine: sums.append(mine.copy()) or total)
        there = (on_device(each[part], dtype) for each in (x, dy))
        engine.batch_norm_train_backward(*there, dx, norm, gradients, whole)
        return dx, *gradients

    for part in parts:
        backward(part, x.size // 16, xp.zeros((2, 16), np.float32))
    for count in x.size // 16, xp.full((), x.size // 16, np.float32):
        found = [backward(part, count, sums[0] + sums[1]) for part in parts]
        for part, (dx, *_) in zip(parts, found, strict=True):
            assert_near(dx, expected_dx[part], digits)
        for index in range(2):
            assert_near(found[0][1 + index] + found[1][1 + index], expected[index])
