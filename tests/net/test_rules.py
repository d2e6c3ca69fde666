"""Each rule of rewriting may be left out: results change by rounding at most."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import fcaffe.layers  # noqa: F401
from fcaffe.net.run import rewrite
from fcaffe.solvers import Solver
from tests.cases import case
from tests.engine_choice import engine
from tests.net.random_nets import RandomNet
from tests.net.random_residual_nets import RandomResidualNet
from tests.net.test_inference_nets import net_of
from tests.net.test_random_nets import make

pytestmark = pytest.mark.usefixtures("on_each_engine")

TRAINED = [RandomNet(seed).text for seed in range(10)]
NETS = [*TRAINED, *(RandomResidualNet(seed).text for seed in range(6))]
BEHIND = ['type: "ReLU"', 'type: "Scale" scale_param { bias_term: true }', 'type: "Eltwise" bottom: "other"']
CHAINS = [  # of a normalisation, with a scale and a bias of its own or without, and all orders of what may follow it
    (f'type: "BatchNorm" batch_norm_param {{ {own} }}', *behind)
    for own in ("", "scale_bias: true")
    for behind in itertools.product(BEHIND, repeat=3)
]
NEAR = 1e-5  # of the largest value of a blob
NAMES = [getattr(getattr(rule, "keywords", {}).get("kind", rule), "__name__", "") for rule in rewrite.rules]


def check(run: Callable[[], list[np.ndarray]], near: float, least: float) -> None:
    """`run` gives the same without any one rule, to `near` of an array's largest value, or of `least`."""
    found = run()
    for index, name in enumerate(NAMES):
        with case(f"without {name}"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(rewrite, "rules", [*rewrite.rules[:index], *rewrite.rules[index + 1 :]])
            for ours, theirs in zip(run(), found, strict=True):
                assert np.abs(ours - theirs).max(initial=0) <= near * max(least, np.abs(theirs).max(initial=0))


def test_inference() -> None:
    used = engine()

    def run() -> list[np.ndarray]:
        nets = [net_of(text, True, used) for text in NETS]
        for net in nets[len(TRAINED) :]:
            net.blob("x").data[...] = np.random.default_rng(1).standard_normal(net.blob("x").shape)
        for _ in range(3):
            for net in nets:
                net.forward()
        return [blob.data.copy() for net in nets for _, blob, _ in net.outputs()]

    check(run, NEAR, least=1)


def test_training() -> None:
    def run() -> list[np.ndarray]:
        solvers: list[Solver] = [make(text, whole=True) for text in TRAINED]
        for solver in solvers:
            solver.step(2)
        return [solver.diff.copy() for solver in solvers]

    check(run, 2e-4, least=1e-4)


def chain(kinds: tuple[str, ...]) -> str:
    data = 'dummy_data_param { shape { dim: 4 dim: 3 dim: 5 dim: 5 } data_filler { type: "gaussian" } }'
    convolution = 'convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } }'
    return "\n".join(
        [
            *(f'layer {{ name: "{top}" type: "DummyData" top: "{top}" {data} }}' for top in ("x", "aim")),
            *(
                f'layer {{ name: "{top}" type: "Convolution" bottom: "x" top: "{top}" {convolution} }}'
                for top in ("0", "other")
            ),
            *(f'layer {{ name: "l{n}" {kind} bottom: "{n}" top: "{n + 1}" }}' for n, kind in enumerate(kinds)),
            f'layer {{ name: "loss" type: "EuclideanLoss" bottom: "{len(kinds)}" bottom: "aim" }}',
        ]
    )


def test_chains() -> None:
    """Whole passes train as passes that go layer by layer, whatever follows a normalisation."""
    for kinds in CHAINS:
        solvers = [make(chain(kinds), whole) for whole in (False, True)]
        for solver in solvers:
            solver.step(2)
        ours, theirs = (solver.diff for solver in solvers)
        with case(*kinds):
            assert np.abs(ours - theirs).max() <= 2e-4 * np.abs(theirs).max()
