"""Convolution by cuDNN's graphs, computed by a stand-in, against the plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.engines.windows import Windows
from tests.engines.cuda import stand_in_cudnn
from tests.golden_values import assert_close

PLAIN = NumpyEngine()


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_device(engine: CudaEngine, values: np.ndarray, dtype: Any = np.float32, channels_last: bool = True) -> Any:
    device = engine.xp.asarray(values.astype(dtype))
    if not channels_last or values.ndim < 4:
        return device
    array = engine.empty_channels_last(values.shape, dtype)
    array[...] = device
    return array


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    stand_in_cudnn.executed.clear()


def test_activations_of_either_type(cuda_engine: Callable[..., CudaEngine]) -> None:
    """float32 in, 16 bits out, and the other way round."""
    engine = cuda_engine(math="bf16")
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1))
    x, weights, expected = numbers((2, 3, 6, 6), 0), numbers((8, 3, 3, 3), 1), np.empty((2, 8, 6, 6), np.float32)
    PLAIN.convolution_forward(x, weights, None, expected, windows, 1)
    for source, target in ((np.float32, engine.half_dtype), (engine.half_dtype, np.float32)):
        y = on_device(engine, np.zeros_like(expected), target)
        engine.convolution_forward(on_device(engine, x, source), on_device(engine, weights), None, y, windows, 1)
        assert_close(y.get().astype(np.float32), expected, "result", 2e-2)


def forward(engine: CudaEngine, batch: int = 2) -> None:
    x, y = on_device(engine, numbers((batch, 3, 6, 6), 0)), on_device(engine, numbers((batch, 8, 4, 4), 0))
    weights, bias = on_device(engine, numbers((8, 3, 3, 3), 1)), engine.xp.asarray(numbers((8,), 2))
    engine.convolution_forward(x, weights, bias, y, Windows((3, 3), (1, 1), (0, 0), (1, 1)), 1, relu=True)


def test_plans_are_chosen_once(cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that is supported and allowed: the stand-in's plan 0 gives other bits each time."""
    for options, plan in ({"math": "tf32"}, 1), ({"math": "tf32", "deterministic": False}, 0):
        stand_in_cudnn.executed.clear()
        engine = cuda_engine(**options)
        forward(engine)
        with monkeypatch.context() as patched:
            patched.setattr(stand_in_cudnn.pygraph, "validate", None)
            forward(engine)
        assert stand_in_cudnn.executed == 2 * [("forward", plan)]


@pytest.mark.parametrize(("free", "total", "plan"), [(140, 150, 1), (3, 150, 2), (70, 80, 1), (20, 24, 2)])
def test_the_workspace_of_a_plan_fits_the_gpu(
    free: int, total: int, plan: int, cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan 1 wants 4 GiB, plan 2 little; the GPU has these GiB."""
    sizes = {1: 4 << 30, 2: 512}
    monkeypatch.setattr(stand_in_cudnn.pygraph, "get_workspace_size_plan_at_index", lambda graph, index: sizes[index])
    engine = cuda_engine()
    monkeypatch.setattr(engine.xp.cuda.runtime, "memGetInfo", lambda: (free << 30, total << 30))
    monkeypatch.setattr(engine.plans, "_workspace", lambda size: 1)
    forward(engine)
    assert stand_in_cudnn.executed[-1] == ("forward", plan)


def test_where_cudnn_has_no_plan_that_is_told_once(
    cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(graph: Any) -> None:
        raise RuntimeError("not supported")

    monkeypatch.setattr(stand_in_cudnn.pygraph, "validate", refuse)
    engine = cuda_engine()
    forward(engine)
    forward(engine, batch=3)
    logged = capfd.readouterr().err
    assert logged.count("cuDNN has no plan for forward float32 (2, 3, 6, 6)") == logged.count("no plan") == 1
