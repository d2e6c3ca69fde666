"""Random nets: training in whole passes, fused and in shared memory, is the training layer by layer."""

import numpy as np
import pytest

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.solvers import Solver
from tests.cases import case
from tests.engine_choice import engine
from tests.net.random_nets import RandomNet
from tests.watching import watch

pytestmark = pytest.mark.usefixtures("on_each_engine")

SEEDS = range(45)
STEPS = 2
NAN = 0xFFFF  # each half of a float32, or all of a bfloat16


def make(text, whole, recompute=False, seed=7):
    param = parse_text(
        f'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 random_seed: {seed} max_iter: 9 '
        f"snapshot_after_train: false net_param {{ {text} }}",
        pb.SolverParameter,
    )
    upgrade_solver(param, "solver")
    return Solver(param, engine(), "counter", whole_passes=whole, recompute=recompute)


def fill_with_nan(net):
    """The stretch that arrays share, and every gradient: what nobody writes shows. Only what user code may leave alone
    is left alone."""
    net.arena.follow(net.fused)
    for storage in net.arena.storages:
        if storage.buffer.dtype in (np.float32, "V2"):
            storage.buffer.view(np.uint16)[...] = NAN
    of_user_code = {
        id(blob.diff_storage) for node in net.nodes if node.layer.traits.runs_user_code for blob in node.bottoms
    }
    for blob in {blob for node in net.fused.nodes for blob in node.blobs}:
        if blob.diff_storage.buffer is not None and id(blob.diff_storage) not in of_user_code:
            blob.diff_storage.buffer.view(np.uint16)[...] = NAN


def check(text, recompute=False, within=2e-4):
    plain, whole = make(text, whole=False), make(text, whole=True, recompute=recompute)
    watch(whole, iteration_begins=lambda: fill_with_nan(whole.net))
    for _ in range(STEPS):
        plain.step(1)
        whole.step(1)
        largest = np.abs(plain.diff).max()
        for parameter, place in zip(plain.net.parameters.owned, plain.net.parameters.slices, strict=True):
            ours, theirs = whole.diff[place], plain.diff[place]
            scale = max(1e-4, np.abs(theirs).max(), 1e-2 * largest)
            what = f"update of parameter {parameter.index} of {parameter.layer.name}"
            assert np.abs(ours - theirs).max(initial=0) <= within * scale, what
        if engine().name == "NumPy":  # plain arithmetic, which is the same fused or not
            assert np.array_equal(whole.data, plain.data)


@pytest.mark.parametrize("recompute", [False, True])
def test_whole_passes_of_random_nets(recompute):
    for seed in SEEDS[:: 4 if recompute else 1]:
        text = RandomNet(seed).text
        with case(f"seed {seed}", text):
            check(text, recompute)
