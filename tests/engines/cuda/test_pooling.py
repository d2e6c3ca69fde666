"""The GPU's pooling on the stand-ins at its limits. tests/engines/test_operators.py compares it with the plain one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.engines.cuda import pooling
from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.engines.windows import Windows
from fcaffe.errors import FcaffeError
from tests.engines.cuda.device_arrays import C_ORDER, blank, launched, on_device, random, to_host

WINDOWS = Windows((2, 2), (2, 2), (0, 0), (1, 1))
Engines = Callable[..., CudaEngine]


def test_places_anywhere_in_the_plane(cuda_engine: Engines) -> None:
    dy, mask = random((3, 5, 4, 4)), np.random.default_rng(1).integers(-1, 9, (3, 5, 4, 4)).astype(np.float32)
    dx = np.zeros((3, 5, 9), np.float32)
    for n, c, h, w in np.argwhere(mask >= 0):
        dx[n, c, int(mask[n, c, h, w])] += dy[n, c, h, w]
    dx_there = blank((3, 5, 3, 3))
    cuda_engine().scatter_to_plane(on_device(dy), on_device(mask, np.float32, C_ORDER), dx_there)
    np.testing.assert_array_equal(to_host(dx_there), dx.reshape(3, 5, 3, 3))


def test_too_many_values_for_the_kernels(cuda_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "LARGEST", 100)
    with pytest.raises(FcaffeError, match=r"\(1, 8, 4, 4\) to \(1, 8, 2, 2\) has too many values"):
        cuda_engine().max_pool_forward(blank((1, 8, 4, 4)), blank((1, 8, 2, 2)), None, WINDOWS)


def test_no_images(cuda_engine: Engines) -> None:
    engine, x, y = cuda_engine(), blank((0, 3, 4, 4)), blank((0, 3, 2, 2))
    launched()
    engine.max_pool_forward(x, y, blank(y.shape), WINDOWS)
    engine.max_pool_backward(y, blank(y.shape), x, WINDOWS)
    engine.average_pool_forward(x, y, WINDOWS)
    engine.average_pool_backward(y, x, WINDOWS)
    engine.scatter_to_plane(y, blank(y.shape), x)
    assert not launched()
