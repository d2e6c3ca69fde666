"""Layer-wise rates: LARS as in Intel's fork, LARC as in NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import SolverError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver, trust_ratio

# Weights of norm 5 and gradients of norm 2.
W, G = np.array([3, 0, 4], np.float32), np.array([0, 2, 0], np.float32)
LARS = "local_lr_auto: true local_gw_ratio: 0.5 "
LARC = "larc: true larc_eta: 0.5 momentum: 0.5 "


def rate_for(text: str, w: np.ndarray = W, g: np.ndarray = G, rate: float = 0.25) -> float:
    return trust_ratio.local_rate(parse_text(text, pb.SolverParameter), np, w, g, rate)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0.25),
        (LARS, 0.25 * 0.5 * 5 / 2),
        (LARS + "weight_decay: 0.1", 0.25 * 0.5 * 5 / 2.5),
        ("local_lr_auto: true", 0.25 * 0.001 * 5 / 2),
        (LARC, 0.25 * 0.5 * 0.5 * 5 / 2),
        (LARC + 'weight_decay: 0.1 larc_policy: "scale"', 0.25 * 0.5 * 0.5 * 5 / 2),
        (LARC + 'larc_policy: "clip"', 0.25),
        ('larc: true larc_policy: "clip"', 0.001 * 5 / 2),
    ],
)
def test_closed_forms(text: str, expected: float) -> None:
    assert rate_for(text) == pytest.approx(expected, rel=1e-6)


def test_small_gradients_are_not_zeros() -> None:
    """The square of this one is no float32."""
    assert rate_for(LARS, g=G * np.float32(1e-30)) == pytest.approx(0.25 * 0.5 * 5 / 2e-30)


def test_norms_of_long_arrays_are_exact_to_float32() -> None:
    values = np.random.default_rng(1).standard_normal(3 * trust_ratio.BLOCK + 17).astype(np.float32)
    assert np.float32(trust_ratio.squares(values, np) ** 0.5) == np.float32(np.linalg.norm(values.astype(np.float64)))


NET = """
net_param {
  layer { name: "data" type: "DummyData" top: "data"
          dummy_data_param { data_filler { value: 1 } shape { dim: 2 dim: 3 } } }
  layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" param { lr_mult: 2 } param { lr_mult: 0 }
          inner_product_param { num_output: 1 weight_filler { type: "constant" value: 2 } bias_filler { value: 1 } } }
  layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }
}
base_lr: 0.25 lr_policy: "fixed" weight_decay: 0.5 momentum: 0.5 local_lr_auto: true local_gw_ratio: 0.1 iter_size: 2
snapshot: 2 max_iter: 9
"""


def test_the_ratio_goes_with_lr_mult_the_norm_of_the_mean_gradient_and_the_whole_step(
    solver_from: Callable[..., Solver],
) -> None:
    """Gradient 2 (the sum over 2 samples) for each of 3 weights of 2; two passes give the same mean."""
    solver = solver_from(NET)
    weights, bias = (blob.data for blob in solver.net.layers[1].blobs)
    solver.step(1)
    local = 0.25 * 2 * 0.1 * 2 / (2 + 0.5 * 2)
    assert weights.ravel() == pytest.approx([2 - local * (2 + 0.5 * 2)] * 3)
    assert bias == [1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"larc": True, "local_lr_auto": False, "larc_policy": "both"}, "larc_policy 'both'; known ones: scale, clip"),
        ({"larc": True}, "local_lr_auto and larc are both given"),
        ({"type": "Adam"}, "local_lr_auto goes with the solver types SGD, Nesterov, not with Adam"),
    ],
)
def test_what_cannot_be_is_refused(solver_from: Callable[..., Solver], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SolverError, match=message):
        solver_from(NET, **fields)


def test_gradients_with_momentum_are_refused() -> None:
    with pytest.raises(SolverError, match="needs the gradients themselves"):
        trust_ratio.check(parse_text(LARS, pb.SolverParameter), applies_momentum=True)
