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
MATHS = {"fp32": 1e-6, "fp16": 2e-3, "bf16": 2e-2}


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


@pytest.mark.parametrize("math", MATHS)
def test_operands_anywhere_in_memory(cuda_engine: Callable[..., CudaEngine], math: str) -> None:
    """cuDNN takes for granted that they begin at multiples of 16 bytes."""
    engine, windows = cuda_engine(math=math), Windows((3, 3), (1, 1), (1, 1), (1, 1))
    x, weights, dy = numbers((2, 3, 6, 6), 0), numbers((8, 3, 3, 3), 1), numbers((2, 8, 6, 6), 2)
    expected, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(weights)
    PLAIN.convolution_forward(x, weights, None, expected, windows, 1)
    PLAIN.convolution_backward_data(dy, weights, dx, windows, 1)
    PLAIN.convolution_backward_weights(x, dy, dw, windows, 1, add=False)

    def displaced(values: np.ndarray, dtype: Any = engine.half_dtype or np.float32) -> Any:
        number, channels, *places = values.shape
        flat = engine.xp.zeros(values.size + 1, dtype)[1:]
        array = engine.xp.moveaxis(flat.reshape(number, *places, channels), -1, 1)
        array[...] = engine.xp.asarray(values.astype(dtype))
        return array

    there = [displaced(values) for values in (x, dy, np.zeros_like(dy), np.zeros_like(x))]
    weights_there, dw_there = displaced(weights, np.float32), displaced(np.zeros_like(weights), np.float32)
    engine.convolution_forward(there[0], weights_there, None, there[2], windows, 1)
    engine.convolution_backward_data(there[1], weights_there, there[3], windows, 1)
    engine.convolution_backward_weights(there[0], there[1], dw_there, windows, 1, add=False)
    for found, wanted in ((there[2], expected), (there[3], dx), (dw_there, dw)):
        assert_close(found.get().astype(np.float32), wanted, "result", MATHS[math])


def test_an_empty_batch(cuda_engine: Callable[..., CudaEngine]) -> None:
    engine = cuda_engine()
    windows = Windows((3, 3), (1, 1), (0, 0), (1, 1))
    x, y = on_device(engine, numbers((0, 3, 6, 6), 0)), on_device(engine, numbers((0, 8, 4, 4), 0))
    weights, dweights = on_device(engine, numbers((8, 3, 3, 3), 1)), on_device(engine, numbers((8, 3, 3, 3), 2))
    engine.convolution_forward(x, weights, None, y, windows, 1)
    engine.convolution_backward_data(y, weights, x, windows, 1)
    engine.convolution_backward_weights(x, y, dweights, windows, 1, add=False)
    assert not dweights.get().any()


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
