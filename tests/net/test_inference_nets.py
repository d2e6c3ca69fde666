"""Nets for inference, whose convolutions take in what stands behind them, give what they give layer by layer."""

import numpy as np
import pytest

from fcaffe.layers.fused.subsampling import Subsample
from fcaffe.net import Blob, Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine
from tests.net.random_nets import RandomNet
from tests.net.test_whole_passes import build

pytestmark = pytest.mark.usefixtures("on_each_engine")

SEEDS = range(30)
NEAR = 1e-5  # of the largest value of a blob


def conv(name, bottom, outputs, more=""):
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{
      num_output: {outputs} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} {more} }} }}"""


def behind(blob, *kinds):
    return "\n".join(
        f'layer {{ name: "{blob}/{kind}" type: "{kind}" bottom: "{blob}" top: "{blob}" }}' for kind in kinds
    )


SUM = 'layer { name: "sum" type: "Eltwise" bottom: "%s" bottom: "%s" top: "sum" }'
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 16 dim: 20 dim: 20 } } }'
BLOCK = "\n".join(
    [
        INPUT,
        conv("a", "x", 16, "group: 16 bias_term: false"),
        behind("a", "BatchNorm", "Scale", "ReLU"),
        conv("b", "a", 16),
        behind("b", "BatchNorm", "Scale", "Bias"),
        SUM % ("b", "x"),
        behind("sum", "ReLU"),
    ]
)


def net_of(text, whole, engine):
    param = parse_text(text, pb.NetParameter)
    upgrade_net(param, "net")
    param.state.phase = pb.TEST
    net = Net(param, Context(engine, CaffeRandom(3), noise="counter", inference=True, whole_passes=whole))
    fill(net, 1)
    return net


def fill(net, seed):
    """Other weights; running statistics and scales as they might be."""
    random = np.random.default_rng(seed)
    for layer in net.layers:
        for blob in layer.blobs:
            far = blob in layer.running_statistics[1:]
            drawn = random.uniform(1, 2, blob.shape) if far else random.normal(0.1, 0.3, blob.shape)
            blob.mutable_data[...] = drawn


def cache_nothing(net):
    """As where a script holds arrays of weights. Layers that fold weights then run one by one."""
    for node in net.fused.nodes:
        node.derived = None
    net.fused.replay = None


def check(ours, theirs, what):
    for (name, blob, _), (_, other, _) in zip(ours.outputs(), theirs.outputs(), strict=True):
        a, b = blob.data, other.data
        assert np.abs(a - b).max(initial=0) <= NEAR * max(1, np.abs(b).max(initial=0)), f"{what}: {name}"


def test_random_nets():
    used = engine()
    for seed in SEEDS:
        text = RandomNet(seed).text
        whole, plain = net_of(text, True, used), net_of(text, False, used)
        for _ in range(4):  # by the fourth what can be recorded is played
            whole.forward()
            plain.forward()
            check(whole, plain, f"seed {seed}\n{text}")
        fill(whole, 2)
        fill(plain, 2)
        cache_nothing(whole)
        whole.forward()
        plain.forward()
        check(whole, plain, f"seed {seed}, with other weights and nothing cached\n{text}")


def test_a_residual_block_is_two_calls():
    whole = net_of(BLOCK, True, engine())
    assert [node.name for node in whole.fused.nodes[1:] if node.layer.type != "Split"] == [
        "a+a/BatchNorm+a/Scale+a/ReLU",
        "b+b/BatchNorm+b/Scale+b/Bias+sum+sum/ReLU",
    ]


def test_recordings_do_not_go_by_values_that_happen_to_be_zero():
    """NumPy corrects the averages of windows that go beyond the image, which changes no zeros."""
    used = engine()
    pool = 'layer { name: "pool" type: "Pooling" bottom: "x" top: "y" pooling_param { %s } }'
    net = net_of(INPUT + pool % "pool: AVE kernel_size: 3 stride: 2", True, used)
    x = net.blob("x").data
    for value in (0, 0, 1):
        x[...] = value
        net.forward()
    assert np.allclose(net.blob("y").data, 1, atol=1e-6)


def check_recordings_of(whole, plain, shape):
    """Passes of this input that are run, recorded and played, and one that caches nothing."""
    for net in whole, plain:
        net.blob("x").reshape(*shape)
        net.blob("x").data[...] = np.random.default_rng(shape).standard_normal(shape)
    for number in range(4):
        whole.forward()
        plain.forward()
        check(whole, plain, f"{shape}, pass {number}")
    cache_nothing(whole)
    whole.forward()
    check(whole, plain, f"{shape}, nothing cached")


@pytest.mark.parametrize("behind_the_block", ["Split", "one reader"])
def test_positions_that_nobody_reads_are_not_computed(behind_the_block):
    """A stride moves up to the 3x3 convolution before the residual sum, and no further; see also what is added."""
    used = engine()
    names = ["c", "d"] if behind_the_block == "Split" else ["c"]
    readers = [conv(name, "sum", 8, "stride: 2").replace("3 pad: 1", "1") + behind(name, "Scale") for name in names]
    point = conv("b", "a", 16).replace("3 pad: 1", "1")
    block = [INPUT, conv("a", "x", 16), behind("a", "BatchNorm", "ReLU"), point, behind("b", "Scale")]
    text = "\n".join([*block, SUM % ("b", "x"), behind("sum", "ReLU"), *readers])
    whole, plain = net_of(text, True, used), net_of(text, False, used)
    for size in 20, 9, 20:
        check_recordings_of(whole, plain, (3, 16, size, size))
        places = [node.tops[0].shape[2] for node in whole.fused.nodes if node.layer.type == "FoldedConvolution"]
        assert places == [(size + 1) // 2] * (2 + len(names))


@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (2, 32, 15, 14), (3, 40, 28, 28), (2, 64, 1, 300), (0, 3, 4, 4)])
@pytest.mark.parametrize("stride", [(2, 2), (3, 2), (1, 2)])
def test_subsampling_keeps_all_bits(shape, stride):
    used = engine()
    bottom, top = Blob(used.xp, shape, channels_last=True), Blob(used.xp, (), channels_last=True)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    special = np.array([np.nan, -np.inf, np.inf, -0.0, 1e-40, -np.nan], np.float32)
    x[:, :, ::4, ::4] = np.resize(special, x[:, :, ::4, ::4].shape)
    bottom.data[...] = x
    layer = Subsample("subsample", Context(used, CaffeRandom(1), inference=True), stride)
    layer.reshape([bottom], [top])
    layer.forward([bottom], [top])
    expected = np.ascontiguousarray(x[:, :, :: stride[0], :: stride[1]])
    np.testing.assert_array_equal(np.ascontiguousarray(top.data).view(np.uint32), expected.view(np.uint32))


def test_losses_compute_no_gradients_for_a_test():
    text = """layer { name: "in" type: "Input" top: "a" top: "b" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss" }"""
    for inference in (False, True):
        net = build("TRAIN", text, whole_passes=True, inference=inference)
        net.forward()
        buffers = [blob.data_storage.buffer for blob in net.layers[-1].gradients]
        assert all(buffer is None for buffer in buffers) == inference
