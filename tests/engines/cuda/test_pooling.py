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
from fcaffe.errors import FcaffeError
from tests.engines.cuda import emulator
from tests.engines.cuda.device_arrays import (
    C_ORDER,
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
PLAIN = NumpyEngine()


class Gpu(OnStandIn, Pooling, PlainElementwise):
    pass


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads go round their loops."""
    monkeypatch.setattr(kernels, "MOST_BLOCKS", 2)


def windows(kernel: tuple[int, int], stride: tuple[int, int] = (1, 1), pad: tuple[int, int] = (0, 0)) -> Windows:
    return Windows(kernel, stride, pad, (1, 1))


every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


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


def test_places_anywhere_in_the_plane(gpu: Gpu) -> None:
    dy, mask = random((3, 5, 4, 4)), np.random.default_rng(1).integers(-1, 9, (3, 5, 4, 4)).astype(np.float32)
    dx = np.zeros((3, 5, 9), np.float32)
    for n, c, h, w in np.argwhere(mask >= 0):
        dx[n, c, int(mask[n, c, h, w])] += dy[n, c, h, w]
    dx_there = blank((3, 5, 3, 3))
    gpu.scatter_to_plane(on_device(dy), on_device(mask, np.float32, C_ORDER), dx_there)
    np.testing.assert_array_equal(to_host(dx_there, np.float32), dx.reshape(3, 5, 3, 3))


def test_memory_that_begins_anywhere(gpu: Gpu) -> None:
    of, x = windows((2, 2), (2, 2)), random((1, 8, 4, 4))
    y, y_there = np.empty((1, 8, 2, 2), np.float32), blank((1, 8, 2, 2))
    plain("average_pool_forward", x, y, of)
    gpu.average_pool_forward(on_device(x, offset=1), y_there, of)
    np.testing.assert_array_equal(to_host(y_there, np.float32), y)
    assert launched() == ["average_pool_forward<float, 4>"]  # of a copy
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


def test_too_many_values_for_the_kernels(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_module, "LARGEST", 100)
    with pytest.raises(FcaffeError, match=r"\(1, 8, 4, 4\) to \(1, 8, 2, 2\) has too many values"):
        gpu.max_pool_forward(blank((1, 8, 4, 4)), blank((1, 8, 2, 2)), None, windows((2, 2), (2, 2)))


def test_no_images(gpu: Gpu) -> None:
    of, x, y = windows((2, 2), (2, 2)), cupy.zeros((0, 3, 4, 4), np.float32), cupy.zeros((0, 3, 2, 2), np.float32)
    memory = cupy.zeros_like(y)
    gpu.max_pool_forward(x, y, memory, of)
    gpu.max_pool_backward(y, memory, x, of)
    gpu.average_pool_forward(x, y, of)
    gpu.average_pool_backward(y, x, of)
    gpu.scatter_to_plane(y, memory, x)
    assert not launched()
