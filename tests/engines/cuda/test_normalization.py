"""The GPU's normalisation and softmax, run by the emulator, against the plain operators in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import kernels, normalization
from fcaffe.engines.cuda.normalization import Normalization
from fcaffe.engines.cuda.softmax import Softmax
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.normalization import Normalizer, Whole
from tests.engines.cuda import emulator
from tests.engines.cuda.device_arrays import (
    C_ORDER,
    CHANNELS_OF_MORE,
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
SHAPES = [
    (2, 1, 3, 3),
    (3, 3, 5, 7),
    (2, 5, 4, 4),
    (4, 8, 16, 17),
    (2, 20, 3, 5),
    (2, 96, 9, 9),
    (40, 256),
    (3, 4, 2, 2, 5),
]
EPS = 1e-5
PLAIN = NumpyEngine()

Array = Any

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
layouts_and_types = pytest.mark.parametrize(
    ("layout", "dtype", "other"),
    [(C_ORDER, FLOAT, FLOAT), (CHANNELS_OF_MORE, HALF, HALF), (CHANNELS_OF_MORE, HALF, FLOAT)],
    ids=str,
)


class Gpu(OnStandIn, Normalization, Softmax, PlainElementwise):
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


@every_dtype
@pytest.mark.parametrize("channels", [1, 5, 96])
@pytest.mark.parametrize("size", [1, 5, 9])
def test_lrn(gpu: Gpu, dtype: np.dtype, channels: int, size: int) -> None:
    check_lrn(gpu, (2, channels, 3, 2), dtype, size, (1.5, 0.75, 1.0))


@every_dtype
@pytest.mark.parametrize("numbers", [(1e-4, 0.75, 1.0), (1e-4, 0.75, 2.0), (5.0, 0.5, 1.0), (0.5, 1.3, 0.1)], ids=str)
def test_numbers_of_lrn(gpu: Gpu, dtype: np.dtype, numbers: tuple[float, float, float]) -> None:
    check_lrn(gpu, (2, 16, 3, 5), dtype, 5, numbers)
    check_lrn(gpu, (2, 7, 3, 5), dtype, 5, numbers)


def test_lrn_beyond_the_channels(gpu: Gpu) -> None:
    """There scales may be 0, which is nobody's business."""
    x = np.ones((1, 8, 2, 2), np.float32)
    x[:, [0, 7]] = 0
    y, dx, scale, dx_there = double(*x.shape), double(*x.shape), double(*x.shape), blank(x.shape)
    PLAIN.lrn_forward(x.astype(np.float64), y, scale, 5, 1.0, 0.75, 0.0)
    PLAIN.lrn_backward(x.astype(np.float64), y, scale, x, dx, 5, 1.0, 0.75, 0.0)
    gpu.lrn_backward(on_device(x), on_device(y), None, on_device(x), dx_there, 5, 1.0, 0.75, 0.0)
    assert_near(dx_there, dx)


@pytest.mark.usefixtures("few_blocks")
@every_dtype
def test_loops_of_lrn(gpu: Gpu, dtype: np.dtype) -> None:
    check_lrn(gpu, (2, 16, 23, 19), dtype, 5, (1.0, 0.75, 1.0))


@pytest.mark.parametrize("layout", [C_ORDER, CHANNELS_OF_MORE])
def test_lrn_in_other_layouts(gpu: Gpu, layout: str) -> None:
    check_lrn(gpu, (2, 8, 3, 5), FLOAT, 5, (1.0, 0.75, 1.0), layout=layout)


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
        norm, memory = Normalizer(self.mean, self.variance, EPS, *self.affine, relu), np.empty(0)
        PLAIN.batch_norm_moments(self.x, self.mean, self.variance)
        PLAIN.batch_norm_train(self.x, self.y, norm, memory)
        PLAIN.batch_norm_train_backward(self.x, self.dy, self.dx, norm, self.gradients, memory)

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
    memory, norm = cupy.zeros(0, np.float32), of.normalizer_there()
    gpu.batch_norm_moments(x, norm.mean, norm.variance)
    gpu.batch_norm_train(x, y, norm, memory)
    assert_near(norm.mean, of.mean)
    assert_near(norm.variance, of.variance)
    assert_near(y, of.y, dtype)
    gpu.batch_norm_train_backward(x, dy, dx, norm, gradients, memory)
    assert_near(dx, of.dx, dtype)
    for gradient, expected in zip(gradients, of.gradients, strict=True):
        assert_near(gradient, expected)
    gpu.batch_norm_train_backward(x, dy, dy, norm, gradients, memory)
    assert_near(dy, of.dx, dtype)
    gpu.batch_norm_apply(x, x, norm)
    assert_near(x, of.y, dtype)


@every_dtype
@every_shape
@pytest.mark.parametrize(("with_affine", "relu"), [(False, False), (True, False), (True, True)])
def test_batch_norm(gpu: Gpu, dtype: np.dtype, shape: tuple[int, ...], with_affine: bool, relu: bool) -> None:
    check_batch_norm(gpu, BatchNorm(random(shape) + 1, dtype, with_affine, relu), dtype)
    assert not [name for name in launched() if not name.startswith("batch_norm")]


@pytest.mark.usefixtures("few_blocks")
@every_dtype
@pytest.mark.parametrize("shape", [(4, 24, 17, 19), (3, 5, 31, 33)], ids=str)
def test_loops_of_batch_norm(gpu: Gpu, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    check_batch_norm(gpu, BatchNorm(random(shape) + 1, dtype, True, True), dtype)


@layouts_and_types
def test_batch_norm_in_other_layouts(gpu: Gpu, layout: str, dtype: np.dtype, other: np.dtype) -> None:
    check_batch_norm(gpu, BatchNorm(random((2, 8, 3, 5)), dtype, True, True), dtype, other, layout=layout)


@pytest.mark.parametrize("channels", [3, 8])
def test_variance_far_from_zero_and_of_outliers(gpu: Gpu, channels: int) -> None:
    far = random((4, channels, 16, 17)) + 1000
    outlier = random((4, channels, 16, 17))
    outlier[0, :, 0, 0] = 1e4
    for x in (far, outlier):
        mean, variance = blank((channels,)), blank((channels,))
        gpu.batch_norm_moments(on_device(x), mean, variance)
        exact = x.astype(np.float64)
        np.testing.assert_allclose(to_host(mean), exact.mean(axis=(0, 2, 3)), rtol=2e-6)
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
        gpu.batch_norm_train_backward(x[each], dy[each], dx, norm, gradients, cupy.zeros(0, np.float32), whole)
        return dx, *gradients

    for each in range(2):
        backward(each, cupy.zeros((2, channels), np.float32))
    assert len(sums) == 2 and all(each.shape == (2, channels) for each in sums)
    found = [backward(each, sums[0] + sums[1]) for each in range(2)]
    for part, (dx, _, _) in zip(parts, found, strict=True):
        assert_near(dx, of.dx[part], dtype)
    for one, other, expected in zip(found[0][1:], found[1][1:], of.gradients, strict=True):
        assert_near(one + other, expected)


def test_running_statistics(gpu: Gpu) -> None:
    sums = [random((300,)), np.abs(random((300,), seed=1)), random((1,))]
    mean, variance = random((300,), seed=2), np.abs(random((300,), seed=3))
    there = tuple(map(on_device, sums))
    gpu.add_to_statistics(there, on_device(mean), on_device(variance), 10 / 9, 0.999)
    assert len(launched()) == 1
    PLAIN.add_to_statistics(tuple(sums), mean, variance, 10 / 9, 0.999)
    for actual, expected in zip(there, sums, strict=True):
        np.testing.assert_array_equal(to_host(actual, np.float32), expected)


def test_batch_norm_of_nothing(gpu: Gpu) -> None:
    x, memory, ones = cupy.zeros((0, 3, 4, 4), np.float32), cupy.zeros(0, np.float32), cupy.ones(3, np.float32)
    norm, gradients = Normalizer(blank((3,)), blank((3,)), EPS, ones, ones, True), (blank((3,)), blank((3,)))
    gpu.batch_norm_moments(x, norm.mean, norm.variance)
    gpu.batch_norm_train(x, x, norm, memory)
    gpu.batch_norm_train_backward(x, x, x, norm, gradients, memory)
    assert not any(to_host(each).any() for each in (norm.mean, norm.variance, *gradients))
    assert not launched()


# ---- softmax --------------------------------------------------------------------------------------------------------


def check_softmax(
    gpu: Gpu, shape: tuple[int, ...], axis: int, dtype: np.dtype, other: Any = None, **layout: Any
) -> None:
    x, dy, other = (4 * random(shape)).astype(dtype), random(shape, dtype, 1), other or dtype
    y, dx = double(*shape), double(*shape)
    PLAIN.softmax_forward(x.astype(np.float64), y, axis)
    x_there, y_there = on_device(x, dtype, **layout), blank(shape, other, **layout)
    gpu.softmax_forward(x_there, y_there, axis)
    assert_near(y_there, y, dtype)
    rounded = to_host(y_there)
    PLAIN.softmax_backward(rounded, dy.astype(np.float64), dx, axis)
    dy_there, dx_there = on_device(dy, other, **layout), blank(shape, dtype, **layout)
    gpu.softmax_backward(y_there, dy_there, dx_there, axis)
    assert_near(dx_there, dx, dtype)
    gpu.softmax_forward(x_there, x_there, axis)
    assert_near(x_there, y, dtype)
    gpu.softmax_backward(y_there, dy_there, dy_there, axis)
    assert_near(dy_there, dx, dtype)


@every_dtype
@pytest.mark.parametrize(
    "shape",
    [(5, 1), (3, 10), (70, 2), (9, 32), (9, 33), (3, 1000), (2, 1024), (3, 1500), (2, 21, 3, 7), (2, 40, 5, 1)],
    ids=str,
)
def test_softmax(gpu: Gpu, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    check_softmax(gpu, shape, 1, dtype)
    assert len(launched()) == 4


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("shape", [(200, 10), (40, 40), (5, 1200)], ids=str)
def test_loops_of_softmax(gpu: Gpu, shape: tuple[int, ...]) -> None:
    check_softmax(gpu, shape, 1, FLOAT)


def test_softmax_along_other_axes(gpu: Gpu) -> None:
    check_softmax(gpu, (2, 3, 20), 2, FLOAT, layout=C_ORDER)
    assert len(launched()) == 4
    check_softmax(gpu, (2, 3, 4, 5), 2, FLOAT)
    check_softmax(gpu, (4, 3), 0, FLOAT, layout=C_ORDER)
    assert not launched()
    check_softmax(gpu, (9,), 0, FLOAT, layout=C_ORDER)
    assert len(launched()) == 4


@layouts_and_types
def test_softmax_in_other_layouts(gpu: Gpu, layout: str, dtype: np.dtype, other: np.dtype) -> None:
    check_softmax(gpu, (2, 5, 3, 4), 1, dtype, other, layout=layout)


@pytest.mark.parametrize("channels", [8, 40, 1100])
def test_softmax_of_no_numbers(gpu: Gpu, channels: int) -> None:
    x, y = random((4, channels)), np.empty((4, channels), np.float32)
    x[0, 1], x[1, 2], x[2] = np.nan, -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        PLAIN.softmax_forward(x, y, 1)
    there = on_device(x)
    gpu.softmax_forward(there, there, 1)
    np.testing.assert_allclose(to_host(there), y, rtol=4e-6)


# ---- long sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 4, 14, 14), (8, 4, 56, 56)], ids=str)
def test_errors_do_not_grow_with_the_number_of_values(gpu: Gpu, shape: tuple[int, ...]) -> None:
    """As tests/engines/test_long_sums.py has it of CPUs."""
    values = np.random.default_rng(0)
    x = (values.standard_normal(shape) / 2 + 3).astype(FLOAT)
    dy = (values.standard_normal(shape) / 2 + 0.3).astype(FLOAT)
    mean, variance, dscale, dshift = (blank((4,), FLOAT) for _ in range(4))
    x_there, y, dx, dy_there = on_device(x, FLOAT), blank(shape, FLOAT), blank(shape, FLOAT), on_device(dy, FLOAT)
    norm = Normalizer(mean, variance, EPS, on_device(np.ones(4), FLOAT), on_device(np.zeros(4), FLOAT))
    gpu.batch_norm_moments(x_there, mean, variance)
    gpu.batch_norm_train(x_there, y, norm, cupy.zeros(0, FLOAT))
    gpu.batch_norm_train_backward(x_there, dy_there, dx, norm, (dscale, dshift), cupy.zeros(0, FLOAT))
    wide, slope = x.astype(np.float64), dy.astype(np.float64)
    true_mean, true_variance = wide.mean((0, 2, 3)), wide.var((0, 2, 3))
    assert np.abs(to_host(mean) - true_mean).max() <= 1e-6 / 2
    assert np.abs(to_host(variance) / true_variance - 1).max() <= 4e-7
    spread = (1, -1, 1, 1)
    normalized = (wide - true_mean.reshape(spread)) / np.sqrt(true_variance + EPS).reshape(spread)
    assert np.abs(to_host(dshift) / slope.sum((0, 2, 3)) - 1).max() <= 5e-7
    products = slope * normalized
    assert (np.abs(to_host(dscale) - products.sum((0, 2, 3))) <= 5e-7 * np.abs(products).sum((0, 2, 3))).all()
