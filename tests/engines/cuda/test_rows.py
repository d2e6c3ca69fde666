"""Rows added by the kernel against NumPy, bit for bit."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from tests.engines.cuda import stand_in_cupy, stand_in_engine
from tests.engines.cuda.emulator import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler, reason="no g++ to emulate kernels with")


@pytest.fixture
def engine(monkeypatch):
    stand_in_engine.install(monkeypatch)
    yield stand_in_engine.engine()
    stand_in_cupy.reset()


@pytest.mark.parametrize("layouts", [(False, False), (True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("places", "values"), [((5000,), (3,)), ((4, 6), (300,)), ((70,), (3, 4, 5)), ((0,), (3,))])
def test_add_rows(engine, places, values, layouts):
    random, xp = np.random.default_rng(0), engine.xp
    rows = random.standard_normal((*places, *values)).astype(np.float32)
    indices = random.integers(0, 9, places)
    target = random.standard_normal((11, *values)).astype(np.float32)
    arrays = []
    for array, last in zip((rows, target), layouts, strict=True):
        given = xp.asarray(array)
        last = last and given.ndim == 4
        arrays.append(xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(given, 1, -1)), -1, 1) if last else given)
    engine.add_rows(arrays[0], xp.asarray(indices), arrays[1])
    NumpyEngine().add_rows(rows, indices, target)
    np.testing.assert_array_equal(arrays[1].get(), target)
