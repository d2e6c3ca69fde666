"""Training that computes activations a second time, and training that runs out of memory."""

import numpy as np
import pytest

from fcaffe.engines import memory
from fcaffe.errors import NetError
from fcaffe.net import blob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from tests.engine_choice import engine
from tests.net.test_recompute import INPUT, NETS

SOLVER = """
type: "SGD" base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" max_iter: 4 random_seed: 3 iter_size: 2 display: 2
test_iter: 1 test_interval: 2 snapshot_after_train: false debug_info: %s net_param { %s }
"""
DATA = """layer { name: "in" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 6 dim: 3 dim: 16 dim: 16 } shape { dim: 6 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } }"""


def solver(name, debug_info="false", **options):
    param = parse_text(SOLVER % (debug_info, NETS[name]().replace(INPUT, DATA)), pb.SolverParameter)
    upgrade_solver(param, "solver")
    return Solver(param, engine(), random=CaffeRandom(3), **options)


@pytest.mark.parametrize("debug_info", ["false", "true"])
@pytest.mark.parametrize("name", NETS)
def test_the_weights_are_the_same(name, debug_info):
    """Also where, by debug_info, some passes are looked at layer by layer."""
    plain, again = solver(name, debug_info), solver(name, debug_info, recompute=True)
    for one in (plain, again):
        one.step(4)
    assert again.net.arena.again and not plain.net.arena.again
    assert np.array_equal(plain.data, again.data)


def test_running_out_of_memory_says_what_fits(monkeypatch):
    trained = solver("residual")
    need = trained.net.memory()

    def none_left(xp, count, dtype="float32"):
        raise MemoryError("no more")

    monkeypatch.setattr("fcaffe.net.run.arena.aligned_zeros", none_left)
    monkeypatch.setattr("fcaffe.solvers.memory_need.obtainable_bytes", lambda xp: 3 * need.parameters + need.peak // 2)
    with pytest.raises(NetError, match=r"out of memory: .*batch of 6.*set batch_size to \d or less.*--recompute"):
        trained.step(1)
    assert memory.obtainable_bytes(np) is None or memory.obtainable_bytes(np) > 1 << 20
    assert blob.Blob(np, (2,)).data.sum() == 0
