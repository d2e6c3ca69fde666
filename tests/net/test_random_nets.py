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

SEEDS = range(40)
STEPS = 2
NAN = 0xFFFF  # each half of a float32, or all of a bfloat16

# Found by the nets of other seeds, each made small: what was lost, or came from elsewhere, in whole passes.
DATA = """layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 3 dim: 3 dim: 6 dim: 6 } shape { dim: 3 }
  data_filler { type: "gaussian" } data_filler { type: "uniform" min: 0 max: 3.99 } } }"""
LOSS = """layer { name: "ip" type: "InnerProduct" bottom: "%s" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""
NORM = """layer { name: "norm%s" type: "BatchNorm" bottom: "%s" top: "%s" }"""
SCALE = """layer { name: "scale%s" type: "Scale" bottom: "%s" top: "%s" scale_param { bias_term: true } %s }"""
CONV = """layer { name: "conv%s" type: "Convolution" bottom: "%s" top: "%s"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }"""
PYTHON = """layer { name: "%s" type: "Python" bottom: "%s" top: "%s"
  python_param { module: "tests.pycaffe.user_layers" layer: "Times" param_str: "-0.5" } }"""
RELU = 'layer { name: "relu%s" type: "ReLU" bottom: "%s" top: "%s" }'
POWER = 'layer { name: "power" type: "Power" bottom: "%s" top: "%s" power_param { scale: -0.5 shift: 0.1 } }'

CASES = {
    "reference of a Crop": [
        CONV % (1, "x", "a"),
        'layer { name: "pool" type: "Pooling" bottom: "a" top: "b" pooling_param { kernel_size: 2 stride: 2 } }',
        CONV % (2, "b", "c"),
        'layer { name: "crop" type: "Crop" bottom: "a" bottom: "c" top: "d" crop_param { axis: 2 offset: 1 } }',
        LOSS % "d",
    ],
    "normalisations with a scale of their own": [
        CONV % (1, "x", "a"),
        'layer { name: "slope" type: "BN" bottom: "a" top: "a" }',
        RELU % (1, "a", "a"),
        CONV % (2, "a", "b"),
        'layer { name: "scale" type: "BN" bottom: "b" top: "b" bn_param { bn_mode: LEARN } }',
        RELU % (2, "b", "b"),
        CONV % (3, "b", "c"),
        'layer { name: "bias" type: "BatchNorm" bottom: "c" top: "n" batch_norm_param { scale_bias: true } }',
        'layer { name: "sum" type: "Eltwise" bottom: "n" bottom: "b" top: "s" }',
        RELU % (3, "s", "s"),
        LOSS % "s",
    ],
    "propagate_down into BatchNorm": [
        CONV % (1, "x", "a"),
        (NORM % (1, "a", "n")).replace(" }", " propagate_down: false }"),
        SCALE % (1, "n", "n", ""),
        'layer { name: "sum" type: "Eltwise" bottom: "n" bottom: "a" top: "s" }',
        LOSS % "s",
    ],
    "signs of another layer": [
        CONV % (1, "x", "a"),
        NORM % (1, "a", "b"),
        SCALE % (1, "b", "b", ""),
        RELU % (1, "b", "b"),
        POWER % ("b", "b"),
        LOSS % "b",
    ],
    "two orders in memory": [
        CONV % (1, "x", "a"),
        NORM % (1, "a", "a"),
        SCALE % (1, "a", "a", ""),
        RELU % (1, "a", "a"),
        PYTHON % ("times", "a", "b"),
        'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "s" }',
        LOSS % "s",
    ],
}


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


@pytest.mark.parametrize("name", CASES)
def test_what_random_nets_have_found(name):
    check("\n".join([DATA, *CASES[name]]))


@pytest.mark.parametrize("recompute", [False, True])
def test_whole_passes_of_random_nets(recompute):
    for seed in SEEDS[:: 4 if recompute else 1]:
        text = RandomNet(seed).text
        with case(f"seed {seed}", text):
            check(text, recompute)
