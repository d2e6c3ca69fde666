"""Each rule of rewriting may be left out: results change by rounding at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fcaffe.layers  # noqa: F401
from fcaffe.layers.fused import cache_blocking
from fcaffe.net import rewrite
from fcaffe.solvers import Solver
from tests.engine_choice import engine
from tests.net.random_concat_nets import RandomConcatNet
from tests.net.random_nets import RandomNet
from tests.net.random_residual_nets import RandomResidualNet
from tests.net.test_inference_nets import net_of
from tests.net.test_random_nets import make

pytestmark = pytest.mark.usefixtures("on_each_engine")

TRAINED = [kind(seed).text for kind in (RandomNet, RandomConcatNet) for seed in range(6)]
NETS = [*TRAINED, *(RandomResidualNet(seed).text for seed in range(6))]
NEAR = 1e-5  # of the largest value of a blob
NAMES = [getattr(getattr(rule, "keywords", {}).get("kind", rule), "__name__", "") for rule in rewrite.rules]


@pytest.fixture(params=range(len(rewrite.rules)), ids=NAMES)
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and nets that are built from then on lack one rule."""
    monkeypatch.setattr(cache_blocking, "SMALLEST", 0)
    monkeypatch.setattr(cache_blocking, "MOST_WEIGHTS", 1000)
    monkeypatch.setattr(cache_blocking, "wanted_threads", lambda: 1)
    fewer = [rule for index, rule in enumerate(rewrite.rules) if index != request.param]
    return lambda: monkeypatch.setattr(rewrite, "rules", fewer)


def test_inference(without: Any) -> None:
    used = engine()
    found: list[list[np.ndarray]] = []
    for remove in (lambda: None, without):
        remove()
        nets = [net_of(text, True, used) for text in NETS]
        for net in nets[len(TRAINED) :]:
            net.blob("x").data[...] = np.random.default_rng(1).standard_normal(net.blob("x").shape)
        with used.fixed_weights():
            for _ in range(3):
                for net in nets:
                    net.forward()
        found.append([blob.data.copy() for net in nets for _, blob, _ in net.outputs()])
    for ours, theirs in zip(*found, strict=True):
        assert np.abs(ours - theirs).max(initial=0) <= NEAR * max(1, np.abs(theirs).max(initial=0))


def test_training(without: Any) -> None:
    found: list[list[np.ndarray]] = []
    for remove in (lambda: None, without):
        remove()
        solvers: list[Solver] = [make(text, whole=True) for text in TRAINED]
        for solver in solvers:
            solver.step(2)
        found.append([solver.diff.copy() for solver in solvers])
    for ours, theirs in zip(*found, strict=True):
        assert np.abs(ours - theirs).max(initial=0) <= 2e-4 * max(1e-4, np.abs(theirs).max(initial=0))
