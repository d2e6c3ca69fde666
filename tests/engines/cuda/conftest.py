"""GPU engines on stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fcaffe.engines.cuda.engine import CudaEngine
from tests.engines.cuda import emulator, stand_in_cupy, stand_in_engine
from tests.engines.cuda.device_arrays import assert_nothing_else_written


@pytest.fixture
def cuda_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CudaEngine]]:
    """cuda_engine(math="fp32", deterministic=True, graphs=True, loss_scale=None)."""
    if not emulator.has_compiler:
        pytest.skip("the emulator of kernels needs g++")
    stand_in_engine.install(monkeypatch)
    yield stand_in_engine.engine
    stand_in_cupy.reset()


@pytest.fixture(scope="module")
def shared_operators(request: pytest.FixtureRequest) -> Any:
    return request.module.Gpu()


@pytest.fixture
def gpu(shared_operators: Any) -> Iterator[Any]:
    """The operators that the test's module calls Gpu; what lies behind their arrays must stay."""
    stand_in_cupy.reset()
    yield shared_operators
    assert_nothing_else_written()
    stand_in_cupy.reset()
