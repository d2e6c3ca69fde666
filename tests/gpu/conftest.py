"""The engine of the tests that need a GPU. Without one, or if something is missing, a module says what and is skipped
as a whole: there are many hundreds of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fcaffe.engines import Engine
from fcaffe.engines import gpu_engine as make_engine
from fcaffe.engines.cuda import libraries
from fcaffe.errors import UsageError
from tests import engine_choice
from tests.golden_values import assert_close
from tests.layers import test_golden

TOLERANCE = 1e-5  # of the largest value, in float32; sums run in another order than on CPUs


@cache
def missing() -> str:
    """What the GPU needs and is not there."""
    try:
        libraries.load(0)
    except UsageError as problem:
        return str(problem)
    return ""


class ModuleForGpu(pytest.Module):
    def collect(self) -> Iterator[Any]:
        if missing():
            pytest.skip(missing(), allow_module_level=True)
        return iter(super().collect())


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return ModuleForGpu.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def device() -> int:
    """The number of the GPU that tests run on."""
    return 0


@pytest.fixture
def gpu_engine(device: int) -> Callable[..., Engine]:
    """gpu_engine(math="fp32", deterministic=True, graphs=True, loss_scale=None): a new engine.

    It takes the place of the one before: see CudaEngine.
    """

    def make(math: str = "fp32", **options: Any) -> Engine:
        return make_engine(device, math, **options)

    return make


@pytest.fixture(scope="session")
def _common_engines() -> dict[str, Any]:
    return {}


@pytest.fixture
def common_engine(device: int, _common_engines: dict[str, Any]) -> Callable[[str], Engine]:
    """common_engine(math): one for the many small tests of single layers."""

    def get(math: str) -> Engine:
        engine = _common_engines.get(math)
        if engine is None:
            engine = _common_engines[math] = make_engine(device, math, loss_scale=1 if math == "fp16" else None)
        engine.make_current()  # another engine may have been made since
        return engine

    return get


@pytest.fixture
def on_gpu(common_engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that other tests have run on the GPU, held to what it can keep."""
    engine = common_engine("fp32")
    monkeypatch.setattr(engine_choice, "chosen", lambda: engine)
    monkeypatch.setattr(assert_close, "__defaults__", (TOLERANCE,))
    monkeypatch.setattr(test_golden, "EXACT", test_golden.EXACT - {"Tile"})  # which adds up, in another order
