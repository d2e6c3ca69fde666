"""Fully connected layers by cuBLAS, computed by a stand-in, against the plain ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda.engine import CudaEngine
from tests.engines.cuda.stand_in_cupy import cublas
from tests.golden_values import assert_close

PLAIN = NumpyEngine()
TOLERANCES = {"fp32": 1e-6, "tf32": 1e-6, "fp16": 2e-3, "bf16": 2e-2}
M, K, N = 5, 7, 3


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("math", TOLERANCES)
@pytest.mark.parametrize("transpose", [False, True])
def test_all_three(cuda_engine: Callable[..., CudaEngine], math: str, transpose: bool) -> None:
    engine = cuda_engine(math=math)
    dtype = engine.half_dtype or np.float32
    x, dy, bias = numbers(M, K), numbers(M, N), numbers(N)
    weights = numbers(K, N) if transpose else numbers(N, K)
    on = engine.xp.asarray

    y, expected = on(np.full((M, N), np.nan).astype(dtype)), np.empty((M, N), np.float32)
    for given in (bias, None):
        PLAIN.inner_product_forward(x, weights, given, expected, transpose)
        there = None if given is None else on(given)
        engine.inner_product_forward(on(x.astype(dtype)), on(weights), there, y, transpose)
        assert_close(y.get().astype(np.float32), expected, "y", TOLERANCES[math])

    dx, expected = on(np.full((M, K), np.nan).astype(dtype)), np.empty((M, K), np.float32)
    PLAIN.inner_product_backward_data(dy, weights, expected, transpose)
    engine.inner_product_backward_data(on(dy.astype(dtype)), on(weights), dx, transpose)
    assert_close(dx.get().astype(np.float32), expected, "dx", TOLERANCES[math])

    for add in (False, True):
        dweights = numbers(*weights.shape)
        there = on(dweights)
        PLAIN.inner_product_backward_weights(x, dy, dweights, transpose, add)
        engine.inner_product_backward_weights(on(x.astype(dtype)), on(dy.astype(dtype)), there, transpose, add)
        assert_close(there.get(), dweights, "dweights", TOLERANCES[math])
    assert len(cublas.calls) == 5
    assert all(call.endswith("compute 77" if math == "tf32" else "compute 68") for call in cublas.calls)


def test_scores_of_16_bit_factors_may_be_float32(cuda_engine: Callable[..., CudaEngine]) -> None:
    engine = cuda_engine(math="bf16")
    x, weights, y = numbers(M, K), numbers(N, K), engine.xp.zeros((M, N), np.float32)
    expected = np.empty((M, N), np.float32)
    PLAIN.inner_product_forward(x, weights, None, expected, False)
    engine.inner_product_forward(engine.xp.asarray(x), engine.xp.asarray(weights), None, y, False)
    assert_close(y.get(), expected, "y", 2e-2)


def test_what_is_no_matrix_in_c_order_goes_the_plain_way(cuda_engine: Callable[..., CudaEngine]) -> None:
    engine = cuda_engine()
    x, weights, expected = numbers(M, K), numbers(N, K), np.empty((M, N), np.float32)
    y = engine.xp.zeros((M, N), np.float32)
    PLAIN.inner_product_forward(x, weights, None, expected, False)
    engine.inner_product_forward(
        engine.xp.asarray(np.ascontiguousarray(x.T)).T, engine.xp.asarray(weights), None, y, False
    )
    assert not cublas.calls
    assert_close(y.get(), expected, "y", 1e-6)
