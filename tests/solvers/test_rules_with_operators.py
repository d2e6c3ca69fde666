"""Update rules of users that call the engine's operators: several threads do so at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from fcaffe.engines import numpy_engine
from fcaffe.net.blob import Array
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.solvers import Solver
from fcaffe.solvers.rules import SGD, Rule, _registry, register_rule
from tests.engine_choice import engine

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

LAYERS, SIDE, STEPS = 40, 128, 3


class Delegating(Rule):
    """SGD by operators of the engine, of which each call has other numbers and temporary memory."""

    def update(self, w: Array, g: Array, histories: Sequence[Array], rate: float) -> None:
        columns = np.empty((SIDE, w.size // SIDE), np.float32).T
        self.engine.copy(g.reshape(columns.shape), columns)  # by way of a reorder
        self.engine.relu_forward(columns, columns, 0.5)
        self.engine.copy(columns, g.reshape(columns.shape))
        SGD(self.param, self.engine).decay_and_update(w, g, histories, rate, rate / 2)


@pytest.fixture(autouse=True)
def rule() -> Iterator[None]:
    register_rule("Delegating")(Delegating)
    yield
    del _registry["Delegating"]


def trained(threads: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The weights of many parameters, each with its own rate, after some updates."""
    monkeypatch.setattr(numpy_engine, "wanted_threads", lambda: threads)
    layers = "".join(
        f"""layer {{ name: "ip{n}" type: "InnerProduct" bottom: "x" top: "y{n}" param {{ lr_mult: {n % 7 + 1} }}
        inner_product_param {{ num_output: {SIDE} bias_term: false weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss{n}" type: "Reduction" bottom: "y{n}" top: "loss{n}" loss_weight: 1 }}"""
        for n in range(LAYERS)
    )
    text = f"""base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 type: "Delegating" random_seed: 7 max_iter: 9
    snapshot_after_train: false net_param {{ layer {{ name: "data" type: "DummyData" top: "x" dummy_data_param {{
    shape {{ dim: 2 dim: {SIDE} }}
    data_filler {{ type: "uniform" min: -1 max: 1 }} }} }} {layers} }}"""
    param = parse_text(text, pb.SolverParameter)
    upgrade_solver(param, "solver")
    solver = Solver(param, engine())
    solver.step(STEPS)
    return solver.data.copy()


def test_threads_give_the_weights_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trained(1, monkeypatch)
    assert np.isfinite(alone).all()
    for threads in (2, 4, 8):
        assert np.array_equal(trained(threads, monkeypatch), alone), threads
