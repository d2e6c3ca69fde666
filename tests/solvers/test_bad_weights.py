"""Weights that are no numbers and do not show in the loss."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcaffe.engines import cpu_engine
from fcaffe.errors import SolverError

SOLVER = """
base_lr: 1e-6 lr_policy: "fixed" max_iter: 250 snapshot_after_train: false
net_param {
  layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
    shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 } data_filler { type: "gaussian" } } }
  layer { name: "hidden" type: "InnerProduct" bottom: "x" top: "h" param { lr_mult: 0 } param { lr_mult: 0 }
    inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
  layer { name: "silence" type: "Silence" bottom: "h" }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
    inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
}
"""


@pytest.mark.parametrize(("snapshot", "iteration"), [(0, 100), (15, 15)])
def test_they_are_found(snapshot, iteration, solver_from, tmp_path):
    """After 100 iterations, and before a snapshot is written."""
    solver = solver_from(SOLVER, snapshot=snapshot)
    solver.nan_policy.on_nan = "stop"
    solver.step(10)
    hidden = solver.net.layers[solver.net.layer_names.index("hidden")]
    hidden.blobs[0].data[3] = np.nan
    with pytest.raises(SolverError, match=rf'iteration {iteration}: .* parameter 0 of layer "hidden"'):
        solver.step(200)
    assert not list(tmp_path.iterdir())


@given(st.lists(st.floats(width=32) | st.sampled_from([3e38, -1e36]), max_size=5), st.sampled_from([1, 1000]))
def test_an_array_is_finite_if_each_value_is(values, times):
    """Also where the sum of the values is infinite."""
    array = np.repeat(np.float32(values), times)
    assert cpu_engine().is_finite(array) == all(map(math.isfinite, values))
