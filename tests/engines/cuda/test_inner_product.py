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
M, K, N = 5, 7, 3


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


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


@pytest.mark.parametrize(("math", "compute"), [("fp32", 68), ("tf32", 77)])
def test_products_of_tf32(cuda_engine: Callable[..., CudaEngine], math: str, compute: int) -> None:
    engine = cuda_engine(math=math)
    x, weights, y = (engine.xp.asarray(numbers(*shape)) for shape in ((M, K), (N, K), (M, N)))
    engine.inner_product_forward(x, weights, None, y, False)
    assert [call.endswith(f"compute {compute}") for call in cublas.calls] == [True]
