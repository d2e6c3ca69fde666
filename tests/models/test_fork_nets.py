"""Nets with layers of Caffe's forks are built, train, and run in phase TEST with what they have learned."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.engines import cpu_engine
from fcaffe.net import Context, Net
from fcaffe.net.weights import share_weights
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from tests.models.fork_nets import NETS, net

SOLVER = 'base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 max_iter: 5 random_seed: 1'


@pytest.mark.parametrize("name", NETS)
def test_five_iterations(name: str) -> None:
    param = parse_text(f"{SOLVER} snapshot_after_train: false", pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(str(net(name)), pb.NetParameter))
    solver = Solver(param, cpu_engine())
    before = solver.data.copy()
    solver.step(5)
    assert np.isfinite(solver.data).all()
    assert (solver.data != before).mean() > 0.9, "weights that do not learn"
    param.net_param.state.phase = pb.TEST
    test = Net(param.net_param, Context(cpu_engine(), CaffeRandom(1), inference=True, whole_passes=True))
    share_weights(test, solver.net)
    assert np.isfinite(test.forward())
