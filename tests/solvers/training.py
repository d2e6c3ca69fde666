"""What tests of snapshots share: the net of the golden ones, a noisy one, and how to look at a training."""

from __future__ import annotations

import numpy as np

from fcaffe.solvers import Solver
from tests.conftest import GOLDEN
from tests.engine_choice import host
from tests.watching import watch

INTEROP = GOLDEN / "interop"

NOISY = """
net_param {
  layer {
    name: "data" type: "Data" top: "data" top: "label"
    transform_param { crop_size: 20 mirror: true scale: 0.01 }
    data_param { source: "gray_lmdb" backend: LMDB batch_size: 12 }
  }
  layer { name: "noise" type: "DummyData" top: "noise"
          dummy_data_param { data_filler { type: "gaussian" std: 0.1 } shape { dim: 12 dim: 1 dim: 20 dim: 20 } } }
  layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "noise" top: "sum" }
  layer { name: "ip" type: "InnerProduct" bottom: "sum" top: "ip"
          inner_product_param { num_output: 30 weight_filler { type: "xavier" } } }
  layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
  layer { name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2"
          inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
}
base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 12 snapshot: 5 snapshot_after_train: false iter_size: 2
"""


def losses_of(solver: Solver, iterations: int) -> list[float]:
    losses: list[float] = []
    watch(solver, gradients_ready=lambda: losses.append(float(solver.net.blob("loss").data)))
    solver.step(iterations)
    return losses


def weights_of(solver: Solver) -> dict[str, np.ndarray]:
    return {f"{node.name}/{i}": host(blob.data) for node in solver.net.nodes for i, blob in enumerate(node.layer.blobs)}


def assert_near(ours: np.ndarray, theirs: np.ndarray) -> None:
    """To 1e-5 of the largest value. The bias in front of BatchNorm has no gradient but rounding: hence the floor."""
    assert np.abs(ours - theirs).max() <= max(1e-5 * np.abs(theirs).max(), 1e-7)
