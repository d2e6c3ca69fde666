"""The golden layers, nets and trainings on the GPU engine's own code, which stands on stand-ins for CuPy and cuDNN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import engine_choice
from tests.engines.cuda import emulator, stand_in_cupy, stand_in_engine
from tests.layers.test_contract import (  # noqa: F401
    test_batch_size_changes,
    test_c_order_gives_the_same,
    test_empty_batch,
    test_in_place_equals_out_of_place,
    test_parameter_gradients_add_up,
)
from tests.layers.test_fork_layers import test_layer as test_fork_layer  # noqa: F401
from tests.layers.test_golden import test_layer  # noqa: F401
from tests.net.test_golden_nets import case, test_values  # noqa: F401

pytestmark = pytest.mark.skipif(not emulator.has_compiler, reason="the emulator needs g++")


@pytest.fixture(autouse=True)
def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stand_in_engine.install(monkeypatch)
    monkeypatch.setattr(engine_choice, "chosen", stand_in_engine.engine)
    yield
    stand_in_cupy.reset()
