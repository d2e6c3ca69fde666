"""Weights that are no numbers, which a ReLU may hide from the loss."""

import numpy as np
import pytest

from fcaffe.errors import SolverError

SOLVER = """
base_lr: 1e-6 lr_policy: "fixed" max_iter: 250 snapshot_after_train: false
net_param {
  layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 40 dim: 40 } shape { dim: 4 dim: 2 } data_filler { type: "gaussian" } } }
  layer { name: "hidden" type: "Convolution" bottom: "x" top: "h" param { lr_mult: 0 } param { lr_mult: 0 }
    convolution_param { num_output: 16 kernel_size: 3 stride: 3 weight_filler { type: "xavier" } } }
  layer { name: "relu" type: "ReLU" bottom: "h" top: "h" }
  layer { name: "ip" type: "InnerProduct" bottom: "h" top: "y"
    inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
}
"""


@pytest.mark.parametrize("snapshot", [0, 15])
def test_they_are_found(snapshot, solver_from, tmp_path):
    solver = solver_from(SOLVER, snapshot=snapshot)
    solver.nan_policy.on_nan = "stop"
    solver.step(10)
    solver.net.layers[1].blobs[0].data[3] = np.nan
    iteration = snapshot or 100
    with pytest.raises(SolverError, match=rf'iteration (10|{iteration}): .* parameter 0 of layer "hidden"'):
        solver.step(200)
    assert solver.iteration <= iteration and not list(tmp_path.iterdir())
