"""Peak rates of this machine, measured: matrix products and memory copies."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fcaffe.engines import Engine
from fcaffe.engines.memory import aligned_zeros

SIDE = 2048  # of the square matrices
FLOATS = 1 << 26  # per copy: larger than any cache
REPEATS = 5


def gemm_gflops(engine: Engine) -> float:
    """GFLOP/s of the engine's product of large square matrices, the best of REPEATS."""
    a, b, c = (aligned_zeros(engine.xp, SIDE * SIDE).reshape(SIDE, SIDE) for _ in range(3))
    a[...], b[...] = engine.from_numpy(np.random.default_rng(1).standard_normal((2, SIDE, SIDE), np.float32))
    return 2 * SIDE**3 / _best(engine, lambda: engine.inner_product_forward(a, b, None, c, False)) / 1e9


def memory_gbytes(engine: Engine) -> float:
    """GB/s that a copy of a large array reads and writes, the best of REPEATS."""
    a, b = (aligned_zeros(engine.xp, FLOATS).reshape(1 << 10, -1) for _ in range(2))
    a[...], b[...] = 1, 1  # allocates all pages
    return 2 * a.nbytes / _best(engine, lambda: engine.copy(a, b)) / 1e9


def _best(engine: Engine, work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(REPEATS):
        engine.synchronize()
        began = time.perf_counter()
        work()
        engine.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
