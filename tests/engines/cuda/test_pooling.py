"""The GPU's pooling, run by the emulator, against the plain operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import kernels
from fcaffe.engines.cuda import pooling as pooling_module
from fcaffe.engines.cuda.pooling import Pooling
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.windows import Windows
from tests.engines.cuda import emulator
from tests.engines.cuda.device_arrays import (
    C_ORDER,
    CHANNELS_LAST,
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
CHANNELS = [1, 5, 8, 96]
LAYOUTS = [C_ORDER, CHANNELS_OF_MORE]
FLOAT = DTYPES[0]
PLAIN = NumpyEngine()

Array = Any


class Gpu(OnStandIn, Pooling, PlainElementwise):
    pass


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads go round their loops."""
    monkeypatch.setattr(kernels, "MOST_BLOCKS", 2)


def windows(kernel: tuple[int, int], stride: tuple[int, int] = (1, 1), pad: tuple[int, int] = (0, 0)) -> Windows:
    return Windows(kernel, stride, pad, (1, 1))


# Size of the image, windows, and how many: the last ones clipped, beyond the padding, apart, whole, outside.
CASES = [
    ((6, 6), windows((2, 2), (2, 2)), (3, 3)),
    ((7, 6), windows((3, 3), (2, 2)), (3, 3)),
    ((8, 7), windows((3, 3), (2, 2)), (4, 3)),
    ((7, 9), windows((3, 3), (2, 2), (1, 1)), (4, 5)),
    ((6, 6), windows((3, 3), (2, 2), (1, 1)), (4, 4)),
    ((5, 7), windows((3, 2), (1, 2), (1, 0)), (5, 4)),
    ((7, 6), windows((3, 3), (1, 1), (1, 1)), (7, 6)),
    ((5, 6), windows((3, 3), (1, 1), (2, 0)), (7, 4)),
    ((7, 5), windows((2, 2), (2, 2), (1, 1)), (4, 3)),
    ((2, 1), windows((3, 3), (2, 2), (2, 1)), (2, 1)),
    ((3, 3), windows((3, 3), (2, 2), (3, 0)), (3, 1)),
    ((3, 3), windows((3, 3), (1, 1), (0, 2)), (1, 6)),
    ((5, 5), windows((5, 5), (1, 1), (2, 2)), (5, 5)),
    ((8, 8), windows((2, 2), (3, 3)), (3, 3)),
    ((4, 11), windows((4, 11)), (1, 1)),
    ((3, 3), windows((5, 4), (2, 2), (2, 3)), (2, 3)),
    ((4, 4), windows((1, 1), (3, 2)), (2, 3)),
]
every_case = pytest.mark.parametrize(("size", "of", "places"), CASES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_width = pytest.mark.parametrize("channels", CHANNELS)


def rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(dtype).astype(np.float64)


def plain(operator: str, *arrays: Any) -> None:
    with np.errstate(all="ignore"):
        getattr(PLAIN, operator)(*arrays)


def close(dtype: np.dtype) -> dict[str, float]:
    """For sums that are rounded to the dtype once, and to float32 in another order."""
    step = max(float(ml_dtypes.finfo(dtype).eps), 2e-6)
    return {"rtol": step, "atol": step}


def image(channels: int, size: tuple[int, int], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    """Of few values, so that maxima are met more than once, with some that are no numbers."""
    x = np.round(2 * random((2, channels, *size), dtype, seed)) / 2
    x.reshape(-1)[5::11] = np.nan
    x.reshape(-1)[3::17] = -np.inf
    return x


@every_dtype
@every_width
@every_case
def test_max_pooling(
    gpu: Gpu, dtype: np.dtype, channels: int, size: tuple[int, int], of: Windows, places: tuple[int, int]
) -> None:
    x, shape = image(channels, size, dtype), (2, channels, *places)
    y, mask, dx = np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty_like(x)
    dy = random(shape, dtype, 1)
    plain("max_pool_with_indices", x, y, mask, of)
    plain("index_backward", dy, mask, dx, of)
    x_there, y_there, dx_there = on_device(x, dtype), blank(y.shape, dtype), blank(x.shape, dtype)
    gpu.max_pool_forward(x_there, y_there, None, of)
    np.testing.assert_array_equal(to_host(y_there), rounded(y, dtype))
    y_there, memory = blank(y.shape, dtype), blank(y.shape)
    gpu.max_pool_forward(x_there, y_there, memory, of)
    np.testing.assert_array_equal(to_host(y_there), rounded(y, dtype))
    np.testing.assert_array_equal(to_host(memory), mask)
    gpu.max_pool_backward(on_device(dy, dtype), memory, dx_there, of)
    expected = rounded(dx, dtype)
    np.testing.assert_allclose(to_host(dx_there), expected, **close(dtype) if dtype != FLOAT else {})
    for layout in (CHANNELS_LAST, C_ORDER):
        dx_there = blank(x.shape, dtype, layout)
        gpu.scatter_to_plane(on_device(dy, dtype, layout), memory, dx_there)
        np.testing.assert_allclose(to_host(dx_there), expected, **close(dtype))
    assert len(launched()) == 5


def test_places_anywhere_in_the_plane(gpu: Gpu) -> None:
    dy, mask = random((3, 5, 4, 4)), np.random.default_rng(1).integers(-1, 9, (3, 5, 4, 4)).astype(np.float32)
    dx = np.zeros((3, 5, 9), np.float32)
    for n, c, h, w in np.argwhere(mask >= 0):
        dx[n, c, int(mask[n, c, h, w])] += dy[n, c, h, w]
    dx_there = blank((3, 5, 3, 3))
    gpu.scatter_to_plane(on_device(dy), on_device(mask, np.float32, C_ORDER), dx_there)
    np.testing.assert_array_equal(to_host(dx_there, np.float32), dx.reshape(3, 5, 3, 3))


@every_dtype
@every_width
@every_case
def test_average_pooling(
    gpu: Gpu, dtype: np.dtype, channels: int, size: tuple[int, int], of: Windows, places: tuple[int, int]
) -> None:
    shape = (2, channels, *places)
    x, dy = random((2, channels, *size), dtype), random(shape, dtype, 1)
    y, dx = np.empty(shape, np.float32), np.empty_like(x)
    plain("average_pool_forward", x, y, of)
    with np.errstate(all="ignore"):
        outside = ~np.isfinite(y)
    dy[outside] = 0
    plain("average_pool_backward", dy, dx, of)
    y_there, dx_there = blank(y.shape, dtype), blank(x.shape, dtype)
    gpu.average_pool_forward(on_device(x, dtype), y_there, of)
    gpu.average_pool_backward(on_device(dy, dtype), dx_there, of)
    np.testing.assert_allclose(to_host(y_there), rounded(y, dtype), **close(dtype))
    np.testing.assert_allclose(to_host(dx_there), rounded(dx, dtype), **close(dtype))
    assert len(launched()) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "other"), [(FLOAT, FLOAT), (DTYPES[1], DTYPES[1]), (DTYPES[1], FLOAT)], ids=str)
def test_other_layouts_and_mixed_types(gpu: Gpu, layout: str, dtype: np.dtype, other: np.dtype) -> None:
    of, shape = windows((3, 3), (2, 2), (1, 1)), (2, 6, 4, 4)
    x, dy = random((2, 6, 7, 7), dtype), random(shape, DTYPES[1], 1)
    y, mask, dx = np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty_like(x)
    plain("max_pool_with_indices", x, y, mask, of)
    plain("index_backward", dy, mask, dx, of)
    y_there, dx_there, memory = blank(y.shape, other, layout), blank(x.shape, dtype, layout), blank(y.shape)
    gpu.max_pool_forward(on_device(x, dtype, layout), y_there, memory, of)
    gpu.max_pool_backward(on_device(dy, other), memory, dx_there, of)
    np.testing.assert_array_equal(to_host(y_there), rounded(y, other))
    np.testing.assert_allclose(to_host(dx_there), rounded(dx, dtype), **close(dtype))
    mask_there = blank(mask.shape, np.float32, layout)
    gpu.max_pool_with_indices(on_device(x, dtype), y_there, mask_there, of)
    np.testing.assert_array_equal(to_host(mask_there), mask)
    gpu.index_backward(on_device(dy, other, layout), mask_there, dx_there, of)
    np.testing.assert_allclose(to_host(dx_there), rounded(dx, dtype), **close(dtype))
    gpu.scatter_to_plane(on_device(dy, other, layout), mask_there, dx_there)
    np.testing.assert_allclose(to_host(dx_there), rounded(dx, dtype), **close(dtype))
    plain("average_pool_forward", x, y, of)
    gpu.average_pool_forward(on_device(x, dtype, layout), y_there, of)
    np.testing.assert_allclose(to_host(y_there), rounded(y, other), **close(dtype))


def test_memory_that_begins_anywhere(gpu: Gpu) -> None:
    of, x = windows((2, 2), (2, 2)), random((1, 8, 4, 4))
    y, y_there = np.empty((1, 8, 2, 2), np.float32), blank((1, 8, 2, 2))
    plain("average_pool_forward", x, y, of)
    gpu.average_pool_forward(on_device(x, offset=1), y_there, of)
    np.testing.assert_array_equal(to_host(y_there, np.float32), y)
    assert launched() == ["average_pool_forward<float, 1>"]
    gpu.average_pool_forward(on_device(x, offset=4), y_there, of)
    np.testing.assert_array_equal(to_host(y_there, np.float32), y)
    assert launched() == ["average_pool_forward<float, 4>"]


@pytest.mark.usefixtures("few_blocks")
@every_dtype
def test_loops_of_threads(gpu: Gpu, dtype: np.dtype) -> None:
    of, x = windows((3, 3), (2, 2), (1, 1)), random((3, 40, 13, 12), dtype)
    y, mask, dx = np.empty((3, 40, 7, 7), np.float32), np.empty((3, 40, 7, 7), np.float32), np.empty_like(x)
    plain("max_pool_with_indices", x, y, mask, of)
    y_there, memory, dx_there = blank(y.shape, dtype), blank(y.shape), blank(x.shape, dtype)
    gpu.max_pool_forward(on_device(x, dtype), y_there, memory, of)
    np.testing.assert_array_equal(to_host(y_there), rounded(y, dtype))
    plain("index_backward", y, mask, dx, of)
    gpu.max_pool_backward(y_there, memory, dx_there, of)
    np.testing.assert_allclose(to_host(dx_there), rounded(dx, dtype), **close(dtype))


def test_images_too_large_for_the_kernels_are_left_to_plain_code(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_module, "MOST", 100)
    of, x = windows((2, 2), (2, 2)), random((1, 8, 4, 4))
    y, y_there, mask = np.empty((1, 8, 2, 2), np.float32), blank((1, 8, 2, 2)), np.empty((1, 8, 2, 2))
    plain("max_pool_with_indices", x, y, mask, of)
    gpu.max_pool_forward(on_device(x), y_there, None, of)
    np.testing.assert_array_equal(to_host(y_there), y)
    assert not launched()


def test_no_images(gpu: Gpu) -> None:
    of, x, y = windows((2, 2), (2, 2)), cupy.zeros((0, 3, 4, 4), np.float32), cupy.zeros((0, 3, 2, 2), np.float32)
    memory = cupy.zeros_like(y)
    gpu.max_pool_forward(x, y, memory, of)
    gpu.max_pool_backward(y, memory, x, of)
    gpu.average_pool_forward(x, y, of)
    gpu.average_pool_backward(y, x, of)
    gpu.scatter_to_plane(y, memory, x)
    assert not launched()


def test_stochastic_pooling(gpu: Gpu) -> None:
    """Which is the plain operators' work."""
    of, shape = windows((3, 3), (2, 2)), (2, 5, 3, 3)
    x, dice = np.abs(random((2, 5, 7, 7))), np.random.default_rng(0).uniform(size=shape).astype(np.float32)
    y, mask = np.empty(shape, np.float32), np.empty(shape, np.float32)
    y_there, mask_there = blank(shape), blank(shape)
    plain("stochastic_pool_forward", x, y, mask, dice, of)
    gpu.stochastic_pool_forward(on_device(x), y_there, mask_there, on_device(dice, np.float32, C_ORDER), of)
    np.testing.assert_array_equal(to_host(y_there, np.float32), y)
    np.testing.assert_array_equal(to_host(mask_there, np.float32), mask)
    plain("stochastic_pool_test", x, y, of)
    gpu.stochastic_pool_test(on_device(x), y_there, of)
    np.testing.assert_allclose(to_host(y_there, np.float32), y, rtol=1e-6)
