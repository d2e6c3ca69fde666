"""Every layer and the golden nets by plain operators on arrays that are not NumPy's: what CuPy would refuse, fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import Engine
from tests import engine_choice
from tests.cases import each_of
from tests.engines.cuda import stand_in_cupy
from tests.layers.example import Example
from tests.layers.test_contract import (  # noqa: F401
    test_batch_size_changes,
    test_c_order_gives_the_same,
    test_empty_batch,
    test_in_place_equals_out_of_place,
    test_parameter_gradients_add_up,
)
from tests.layers.test_golden import test_layer  # noqa: F401
from tests.layers.test_odd_shapes import ODD, compare
from tests.net.test_golden_nets import case, test_values  # noqa: F401
from tests.solvers.conftest import interop  # noqa: F401
from tests.solvers.test_hdf5_snapshot import (  # noqa: F401
    test_an_hdf5_state_of_caffes_resumes,
    test_hdf5_files_are_caffes,
)
from tests.solvers.test_snapshot import (  # noqa: F401
    test_a_state_of_caffes_resumes_as_caffe_does,
    test_crops_mirrors_and_noise_go_on_where_they_were,
    test_training_and_files_are_caffes,
)
from tests.solvers.test_update_rules import test_training_is_caffes  # noqa: F401


class PlainOnDevice(Engine):
    name = "plain operators on the stand-in for CuPy"

    def __init__(self) -> None:
        super().__init__(stand_in_cupy.cupy)

    def to_numpy(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else array.get()


@pytest.fixture(autouse=True)
def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_choice, "chosen", PlainOnDevice)
    stand_in_cupy.install(monkeypatch)
    yield
    stand_in_cupy.reset()


# Tile works on an axis more than the bottom has, and CuPy's arrays have 32 at most.
@each_of([(kind, example) for kind, example in ODD if kind != "Tile"])
def test_any_shape(kind: str, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(kind, example, {"fp32": PlainOnDevice()}, monkeypatch, every=9)
