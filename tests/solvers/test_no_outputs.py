"""Nets without an output: a loss need not give its top a name, as in Caffe's first examples."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.solvers import Solver

SOLVER = """
net_param {
  layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
          shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { type: "constant" } } }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
          inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" TOP }
}
base_lr: 0.1 lr_policy: "fixed" max_iter: 4 display: 1 test_iter: 2 test_interval: 2 test_compute_loss: true
random_seed: 3 snapshot_after_train: false
"""


@pytest.mark.parametrize("more", ["", "iter_size: 2", "average_loss: 2"])
def test_they_are_trained_and_tested(
    more: str, solver_from: Callable[..., Solver], capfd: pytest.CaptureFixture[str]
) -> None:
    results = {}
    for top in ('top: "loss"', ""):
        solver = solver_from(SOLVER.replace("TOP", top) + more)
        solver.solve()
        log = capfd.readouterr().err
        assert bool(re.search("net output #0", log)) == bool(top)
        results[top] = (
            re.findall(r"(?:Test loss: |, loss = )(\S+)", log),
            [np.array(parameter.blob.data) for parameter in solver.net.parameters.owned],
        )
    (named, weights), (nameless, others) = results.values()
    assert len(named) == 3 + 5  # tests at 0, 2 and 4; losses at 0 to 3 and at the end
    assert nameless == named
    assert all(np.array_equal(one, other) for one, other in zip(weights, others, strict=True))
