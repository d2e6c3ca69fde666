"""The GPU's elementwise operators on the stand-ins: values that are not finite, and copies by words.

tests/engines/test_operators.py compares all of them with plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda.engine import CudaEngine
from tests.engines.cuda.device_arrays import blank, launched, on_device, random, to_host
from tests.engines.cuda.stand_in_cupy import cupy

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
PLAIN = NumpyEngine()
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def gpu(cuda_engine: Callable[..., CudaEngine]) -> CudaEngine:
    return cuda_engine()


@every_dtype
@pytest.mark.parametrize("channels", [5, 16])
def test_values_that_are_not_finite(gpu: CudaEngine, dtype: np.dtype, channels: int) -> None:
    """ReLU in place, its gradient, and the bias with ReLU, each by one kernel."""
    x, bias = random((2, channels, 3, 3), dtype), random((channels,), seed=1)
    x[0, 0], x[1, 2, 1] = [[np.nan, np.inf, -np.inf]] * 3, [0.0, -0.0, 1]
    dy = random(x.shape, dtype, 2)
    for slope in (0, 0.5):
        y, dx, biased = x.copy(), np.empty_like(x), x.copy()
        launched()
        there, dx_there, biased_there = on_device(x, dtype), blank(x.shape, dtype), on_device(x, dtype)
        with np.errstate(invalid="ignore"):
            PLAIN.relu_backward(x, dy, dx, slope)
            PLAIN.relu_forward(y, y, slope)
            PLAIN.add_bias(biased, bias, relu=slope == 0)
        gpu.relu_backward(there, on_device(dy, dtype), dx_there, slope)
        gpu.relu_forward(there, there, slope)
        gpu.add_bias(biased_there, cupy.asarray(bias), relu=slope == 0)
        assert launched() == ["pointwise"] * 3
        for ours, theirs in (there, y), (dx_there, dx), (biased_there, biased):
            np.testing.assert_array_equal(to_host(ours), theirs.astype(dtype).astype(np.float64))


@pytest.mark.parametrize("seed", range(40))
def test_slices_are_copied_by_words(gpu: CudaEngine, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of random lengths along a random axis, there and back; by 16 bytes at a time where channels fill these."""
    dice, dtype = np.random.default_rng(seed), (*DTYPES, np.dtype(np.uint8))[seed % 4]
    shape = [int(n) for n in dice.integers(1, 4, int(dice.integers(2, 6)))]
    unit = 16 // dtype.itemsize if seed % 3 else 1
    axis, lengths = int(dice.integers(len(shape))), [int(n) for n in dice.integers(1, 4, 3)]
    shape[1] *= unit
    lengths = [n * unit for n in lengths] if axis == 1 else lengths
    shape[axis] = sum(lengths)
    whole = dice.integers(0, 200, shape).astype(np.float32)
    pieces = np.split(whole, np.cumsum(lengths)[:-1], axis)
    there, given = on_device(np.zeros(shape), dtype), [on_device(piece, dtype) for piece in pieces]
    back = [on_device(np.zeros(piece.shape), dtype) for piece in pieces]
    sizes: list[int] = []
    assign = cupy.ndarray.__setitem__

    def assign_and_note(array: Any, key: Any, value: Any) -> None:
        sizes.append(array.itemsize)
        assign(array, key, value)

    monkeypatch.setattr(cupy.ndarray, "__setitem__", assign_and_note)
    ends = np.cumsum(lengths)
    slices = [(slice(None),) * axis + (slice(end - n, end),) for end, n in zip(ends, lengths, strict=True)]
    for piece, part in zip(given, slices, strict=True):
        gpu.copy(piece, there[part])
    for piece, part in zip(back, slices, strict=True):
        gpu.copy(there[part], piece)
    np.testing.assert_array_equal(to_host(there), whole)
    for ours, theirs in zip(back, pieces, strict=True):
        np.testing.assert_array_equal(to_host(ours), theirs)
    assert unit == 1 or set(sizes) <= {16}
