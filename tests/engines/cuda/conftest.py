"""GPU engines on stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fcaffe.engines.cuda.engine import CudaEngine
from tests.engines.cuda import emulator, stand_in_cupy, stand_in_engine


@pytest.fixture
def cuda_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CudaEngine]]:
    """cuda_engine(math="fp32", deterministic=True, graphs=True, loss_scale=None)."""
    if not emulator.has_compiler:
        pytest.skip("the emulator of kernels needs g++")
    stand_in_engine.install(monkeypatch)
    yield stand_in_engine.engine
    stand_in_cupy.reset()
