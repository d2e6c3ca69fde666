"""The update of many parameters as one tape has the bits of one parameter after the other."""

import numpy as np
import pytest

from tests.engine_choice import engine

pytestmark = pytest.mark.usefixtures("on_each_engine")


def parts(random, count):
    sizes = random.integers(1, 40_000, count) if count % 2 else random.integers(1, 600, count)
    made = []
    for size in sizes:
        w, g, h = (random.standard_normal(size).astype(np.float32) for _ in range(3))
        w[random.integers(0, size)] = random.choice([np.nan, np.inf, -np.inf, 1e-40, -0.0])
        made.append((w, g, h, bool(random.integers(0, 2))))
    return made


def test_the_same_bits_as_one_by_one():
    for seed in range(20):
        random = np.random.default_rng(seed)
        blocks = parts(random, 1 + seed % 7)
        one_by_one = [tuple(array.copy() for array in block[:3]) for block in blocks]
        used = engine()
        together = used.sgd_updates(blocks)
        if together is None:
            assert not used.records
            return
        for _ in range(3):
            rates = random.uniform(0, 0.1, len(blocks)).tolist()
            decays = [random.uniform(0, 0.01) if block[3] else 0.0 for block in blocks]
            together(rates, decays, 0.9)
            for arrays, rate, decay in zip(one_by_one, rates, decays, strict=True):
                with np.errstate(all="ignore"):
                    used.sgd_update(*arrays, rate, 0.9, decay)
            for block, arrays in zip(blocks, one_by_one, strict=True):
                for a, b in zip(block[:3], arrays, strict=True):
                    assert a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes()
                    assert np.array_equal(np.isnan(a), np.isnan(b))
