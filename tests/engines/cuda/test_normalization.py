"""The GPU's normalisation, run by the emulator, against the plain operators in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import kernels, normalization
from fcaffe.engines.cuda.normalization import Normalization
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.normalization import Normalizer, Whole
from tests.engines.cuda import emulator
from tests.engines.cuda.device_arrays import (
    OnStandIn,
    blank,
    launched,
    on_device,
    random,
    to_host,
)
from tests.engines.cuda.stand_in_cupy import cupy

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs the package ml_dtypes")
pytestmark = pytest.mark.skipif(not emulator.has_compiler, reason="the emulator needs g++")

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
FLOAT, HALF = DTYPES[:2]
EPS = 1e-5
PLAIN = NumpyEngine()

Array = Any

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class Gpu(OnStandIn, Normalization, PlainElementwise):
    pass


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads go round their loops."""
    monkeypatch.setattr(kernels, "MOST_BLOCKS", 2)
    for name in ("MOST_BLOCKS", "FORWARD", "BACKWARD"):
        monkeypatch.setattr(normalization, name, 2)


def double(*shape: int) -> np.ndarray:
    return np.empty(shape, np.float64)


def assert_near(actual: Array, expected: np.ndarray, dtype: np.dtype = FLOAT) -> None:
    """Within a rounding to the dtype, and a few parts in a million of the largest value."""
    step = max(float(ml_dtypes.finfo(dtype).eps), 4e-6) if dtype != FLOAT else 0.0
    largest = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(to_host(actual), expected, rtol=step, atol=4e-6 * largest + 1e-30)


# ---- local response normalisation -----------------------------------------------------------------------------------


def check_lrn(
    gpu: Gpu, shape: tuple[int, ...], dtype: np.dtype, size: int, numbers: tuple[float, float, float], **layout: Any
) -> None:
    x, dy = 3 * random(shape, dtype), random(shape, dtype, 1)
    x = x.astype(dtype).astype(np.float64)
    y, scale, dx = double(*shape), double(*shape), double(*shape)
    PLAIN.lrn_forward(x, y, scale, size, *numbers)
    PLAIN.lrn_backward(x, y, scale, dy, dx, size, *numbers)
    x_there, dy_there = on_device(x, dtype, **layout), on_device(dy, dtype, **layout)
    y_there, dx_there = blank(shape, dtype, **layout), blank(shape, dtype, **layout)
    memory = cupy.zeros((gpu.lrn_memory * shape[0], *shape[1:]), np.float32)
    for kept in (memory, None):
        gpu.lrn_forward(x_there, y_there, kept, size, *numbers)
        assert_near(y_there, y, dtype)
    gpu.lrn_backward(x_there, y_there, memory, dy_there, dx_there, size, *numbers)
    assert_near(dx_there, dx, dtype)


def test_lrn_beyond_the_channels(gpu: Gpu) -> None:
    """There scales may be 0, which is nobody's business."""
    x = np.ones((1, 8, 2, 2), np.float32)
    x[:, [0, 7]] = 0
    y, dx, scale, dx_there = double(*x.shape), double(*x.shape), double(*x.shape), blank(x.shape)
    with np.errstate(divide="ignore"):
        PLAIN.lrn_forward(x.astype(np.float64), y, scale, 5, 1.0, 0.75, 0.0)
    PLAIN.lrn_backward(x.astype(np.float64), y, scale, x, dx, 5, 1.0, 0.75, 0.0)
    gpu.lrn_backward(on_device(x), on_device(y), None, on_device(x), dx_there, 5, 1.0, 0.75, 0.0)
    assert_near(dx_there, dx)


@pytest.mark.usefixtures("few_blocks")
@every_dtype
def test_loops_of_lrn(gpu: Gpu, dtype: np.dtype) -> None:
    check_lrn(gpu, (2, 16, 23, 19), dtype, 5, (1.0, 0.75, 1.0))


# ---- batch normalisation --------------------------------------------------------------------------------------------


class BatchNorm:
    """Operands, and what plain code in float64 makes of them."""

    def __init__(self, x: np.ndarray, dtype: np.dtype, with_affine: bool, relu: bool) -> None:
        channels, rng = x.shape[1], np.random.default_rng(2)
        self.x, self.dy = x.astype(dtype).astype(np.float64), random(x.shape, dtype, 1).astype(np.float64)
        self.relu = relu
        self.y, self.dx = double(*x.shape), double(*x.shape)
        self.mean, self.variance = double(channels), double(channels)
        self.gradients = (double(channels), double(channels)) if with_affine else ()
        self.affine = tuple(rng.standard_normal((2, channels)).astype(np.float32)) if with_affine else (None, None)
        norm = Normalizer(self.mean, self.variance, EPS, *self.affine, relu)
        PLAIN.batch_norm_moments(self.x, self.mean, self.variance)
        PLAIN.batch_norm_apply(self.x, self.y, norm)
        PLAIN.batch_norm_train_backward(self.x, self.dy, self.dx, norm, self.gradients)

    def normalizer_there(self) -> Normalizer:
        """With a mean and a variance that are to be computed."""
        blanks = [blank(self.mean.shape) for _ in range(2)]
        affine = [each if each is None else on_device(each) for each in self.affine]
        return Normalizer(*blanks, EPS, *affine, self.relu)


def check_batch_norm(gpu: Gpu, of: BatchNorm, dtype: np.dtype, other: np.dtype | None = None, **layout: Any) -> None:
    shape, other = of.x.shape, other or dtype
    x, dy = on_device(of.x, dtype, **layout), on_device(of.dy, other, **layout)
    y, dx = blank(shape, other, **layout), blank(shape, dtype, **layout)
    gradients = tuple(blank(each.shape) for each in of.gradients)
    norm = of.normalizer_there()
    gpu.batch_norm_moments(x, norm.mean, norm.variance)
    gpu.batch_norm_apply(x, y, norm)
    assert_near(norm.mean, of.mean)
    assert_near(norm.variance, of.variance)
    assert_near(y, of.y, dtype)
    gpu.batch_norm_train_backward(x, dy, dx, norm, gradients)
    assert_near(dx, of.dx, dtype)
    for gradient, expected in zip(gradients, of.gradients, strict=True):
        assert_near(gradient, expected)
    gpu.batch_norm_train_backward(x, dy, dy, norm, gradients)
    assert_near(dy, of.dx, dtype)
    gpu.batch_norm_apply(x, x, norm)
    assert_near(x, of.y, dtype)


@pytest.mark.usefixtures("few_blocks")
@every_dtype
@pytest.mark.parametrize("shape", [(4, 24, 17, 19), (3, 5, 31, 33)], ids=str)
def test_loops_of_batch_norm(gpu: Gpu, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    check_batch_norm(gpu, BatchNorm(random(shape) + 1, dtype, True, True), dtype)


@every_dtype
@pytest.mark.parametrize("channels", [5, 24])
@pytest.mark.parametrize("other_dtype", [None, FLOAT], ids=["same", "float32"])
def test_sum_and_relu_of_a_residual_block(
    gpu: Gpu, dtype: np.dtype, channels: int, other_dtype: np.dtype | None
) -> None:
    """In one kernel, with NaN and infinities as ReLU has them."""
    of = BatchNorm(random((3, channels, 7, 5)) + 1, dtype, True, False)
    other = random(of.x.shape, other_dtype or dtype, 5)
    other[0, 1, 0, :3] = np.nan, np.inf, -np.inf
    norm, y, expected = of.normalizer_there(), blank(of.x.shape, dtype), np.empty_like(of.x)
    gpu.batch_norm_moments(on_device(of.x, dtype), norm.mean, norm.variance)
    launched()
    gpu.batch_norm_add_relu(on_device(of.x, dtype), on_device(other, other_dtype or dtype), y, norm)
    assert [name.split("<")[0] for name in launched() if "copy" not in name] == ["batch_norm_apply"]
    with np.errstate(all="ignore"):
        PLAIN.batch_norm_add_relu(
            of.x, other.astype(np.float64), expected, Normalizer(of.mean, of.variance, EPS, *of.affine)
        )
    np.testing.assert_array_equal(np.isfinite(to_host(y)), np.isfinite(expected))
    finite = np.isfinite(expected)
    assert_near(cupy.asarray(to_host(y)[finite].astype(np.float32)), expected[finite], dtype)


@pytest.mark.parametrize("channels", [3, 8])
def test_variance_far_from_zero_and_of_outliers(gpu: Gpu, channels: int) -> None:
    far = random((4, channels, 16, 17)) + 1000
    outlier = random((4, channels, 16, 17))
    outlier[0, :, 0, 0] = 1e4
    for x in (far, outlier):
        mean, variance = blank((channels,)), blank((channels,))
        gpu.batch_norm_moments(on_device(x), mean, variance)
        exact = x.astype(np.float64)
        deviation = exact.std(axis=(0, 2, 3))
        np.testing.assert_allclose(to_host(mean) / deviation, exact.mean(axis=(0, 2, 3)) / deviation, 2e-6, 1e-6)
        np.testing.assert_allclose(to_host(variance), exact.var(axis=(0, 2, 3)), rtol=2e-5)


def test_relu_of_no_number_is_none(gpu: Gpu) -> None:
    x = random((2, 8, 2, 2))
    x[0, 3, 0, 0] = np.nan
    y, zero, one = blank(x.shape), cupy.zeros(8, np.float32), cupy.ones(8, np.float32)
    gpu.batch_norm_apply(on_device(x), y, Normalizer(zero, one, 0.0, relu=True))
    np.testing.assert_array_equal(to_host(y, np.float32), np.maximum(x, 0))


@every_dtype
def test_batch_norm_of_two_workers(gpu: Gpu, dtype: np.dtype) -> None:
    """Each has a part of the batch; together they compute what one computes with all of it."""
    of, cut, channels = BatchNorm(random((5, 16, 4, 3)) + 1, dtype, True, True), 2, 16
    parts = [slice(cut), slice(cut, None)]
    x, dy = [on_device(of.x[part], dtype) for part in parts], [on_device(of.dy[part], dtype) for part in parts]
    norm, own = of.normalizer_there(), []
    for each in x:
        gpu.batch_norm_moments(each, norm.mean, norm.variance)
        own.append(cupy.concatenate([cupy.full(1, each.size // channels, np.float32), norm.mean, norm.variance]))
    gpu.merge_moments(cupy.stack(own), norm.mean, norm.variance)
    assert_near(norm.mean, of.mean)
    assert_near(norm.variance, of.variance)
    sums: list[Any] = []

    def backward(each: int, total: Any) -> tuple[Any, Any, Any]:
        gradients, dx = (blank((channels,)), blank((channels,))), blank(of.x[parts[each]].shape, dtype)
        whole = Whole(of.x.size // channels, lambda mine: sums.append(mine.copy()) or total)
        gpu.batch_norm_train_backward(x[each], dy[each], dx, norm, gradients, whole)
        return dx, *gradients

    for each in range(2):
        backward(each, cupy.zeros((2, channels), np.float32))
    assert len(sums) == 2 and all(each.shape == (2, channels) for each in sums)
    found = [backward(each, sums[0] + sums[1]) for each in range(2)]
    for part, (dx, _, _) in zip(parts, found, strict=True):
        assert_near(dx, of.dx[part], dtype)
    for one, other, expected in zip(found[0][1:], found[1][1:], of.gradients, strict=True):
        assert_near(one + other, expected)
