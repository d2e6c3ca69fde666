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
CASES = {  # shape of x, of the weights, stride, pad, dilation, group
    "usual": ((2, 3, 9, 11), (5, 3, 3, 2), (2, 1), (1, 0), (1, 1), 1),
    "pointwise": ((3, 8, 5, 5), (16, 8, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "grouped": ((2, 6, 7, 7), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "dilated": ((2, 4, 9, 9), (6, 4, 3, 3), (1, 1), (0, 0), (2, 2), 1),
    "one axis": ((2, 4, 12), (6, 4, 3), (2,), (1,), (1,), 1),
    "three axes": ((2, 3, 5, 6, 7), (4, 3, 3, 3, 3), (1, 2, 1), (1, 1, 0), (1, 1, 1), 1),
}


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_device(engine: CudaEngine, values: np.ndarray, dtype: Any = np.float32, channels_last: bool = True) -> Any:
    device = engine.xp.asarray(values.astype(dtype))
    if not channels_last or values.ndim < 4:
        return device
    array = engine.empty_channels_last(values.shape, dtype)
    array[...] = device
    return array


@pytest.mark.parametrize("math", MATHS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels_last", [True, False], ids=["channels-last", "C order"])
def test_all_three_and_their_fusions(
    cuda_engine: Callable[..., CudaEngine], math: str, name: str, channels_last: bool
) -> None:
    engine, tolerance = cuda_engine(math=math), MATHS[math]
    x_shape, weight_shape, stride, pad, dilation, group = CASES[name]
    windows = Windows(weight_shape[2:], stride, pad, dilation)
    y_shape = (x_shape[0], weight_shape[0], *windows.convolved(x_shape[2:]))
    x, weights, bias, dy = (numbers(s, i) for i, s in enumerate((x_shape, weight_shape, (weight_shape[0],), y_shape)))
    dtype = engine.half_dtype or np.float32

    def on(values: np.ndarray, kind: Any = dtype) -> Any:
        return on_device(engine, values, kind, channels_last)

    weights_there, bias_there = on(weights, np.float32), engine.xp.asarray(bias)
    for relu in (False, True):
        for with_bias in (False, True):
            y, expected = on(np.full(y_shape, np.nan, np.float32)), np.empty(y_shape, np.float32)
            PLAIN.convolution_forward(x, weights, bias if with_bias else None, expected, windows, group, relu)
            engine.convolution_forward(on(x), weights_there, bias_there if with_bias else None, y, windows, group, relu)
            assert_close(y.get().astype(np.float32), expected, "result", tolerance)

    dx, expected = on(np.full(x_shape, np.nan, np.float32)), np.empty(x_shape, np.float32)
    PLAIN.convolution_backward_data(dy, weights, expected, windows, group)
    engine.convolution_backward_data(on(dy), weights_there, dx, windows, group)
    assert_close(dx.get().astype(np.float32), expected, "result", tolerance)

    for add in (False, True):
        dweights = numbers(weight_shape, 7)
        there = on(dweights, np.float32)
        PLAIN.convolution_backward_weights(x, dy, dweights, windows, group, add)
        engine.convolution_backward_weights(on(x), on(dy), there, windows, group, add)
        assert_close(there.get(), dweights, "result", tolerance)
    assert ({"forward", "data", "weights"} <= {name for name, _ in stand_in_cudnn.executed}) is (
        name != "three axes" or math == "fp32"
    )


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
        assert stand_in_cudnn.executed == 2 * [("forward+bias+relu", plan)]


def test_bias_and_relu_run_by_themselves_where_cudnn_cannot_fuse_them(
    cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(graph: Any, **_: Any) -> None:
        raise RuntimeError("not supported")

    monkeypatch.setattr(stand_in_cudnn.pygraph, "bias", refuse)
    engine = cuda_engine()
    x, weights, bias, y = numbers((2, 3, 6, 6), 0), numbers((8, 3, 3, 3), 1), numbers((8,), 2), numbers((2, 8, 4, 4), 3)
    windows = Windows((3, 3), (1, 1), (0, 0), (1, 1))
    there = on_device(engine, y)
    PLAIN.convolution_forward(x, weights, bias, y, windows, 1, relu=True)
    arrays = on_device(engine, x), on_device(engine, weights), engine.xp.asarray(bias)
    engine.convolution_forward(*arrays, there, windows, 1, relu=True)
    assert stand_in_cudnn.executed == [("forward", 1)]
    assert_close(there.get(), y, "result", 1e-6)


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
