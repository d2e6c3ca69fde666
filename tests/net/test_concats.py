"""A Concat and what alone reads it run as one layer in a training by whole passes: the bits are those of the layers."""

import numpy as np
import pytest

from fcaffe.net import Context, Net
from fcaffe.net.arena import memory_of
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.threads import wanted_threads
from tests.engine_choice import engine
from tests.net.test_random_nets import fill_with_nan, make
from tests.watching import watch

pytestmark = pytest.mark.usefixtures("on_each_engine")

IMAGES = 2 * wanted_threads()

DATA = f"""layer {{ name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {{
  shape {{ dim: {IMAGES} dim: 3 dim: 17 dim: 17 }} shape {{ dim: {IMAGES} }}
  data_filler {{ type: "gaussian" }} data_filler {{ type: "uniform" min: 0 max: 3.99 }} }} }}"""
INPUT = f"""layer {{ name: "in" type: "Input" top: "x" top: "label" input_param {{
  shape {{ dim: {IMAGES} dim: 3 dim: 33 dim: 33 }} shape {{ dim: {IMAGES} }} }} }}"""
BRANCHES = """
layer { name: "a" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "ra" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "Convolution" bottom: "x" top: "b"
  convolution_param { num_output: 80 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "rb" type: "ReLU" bottom: "b" top: "b" }
layer { name: "cat" type: "Concat" bottom: "a" bottom: "b" top: "c" }"""
POOL = """layer { name: "pool" type: "Pooling" bottom: "c" top: "d" pooling_param { kernel_size: 3 stride: 2 } }"""
END = """layer { name: "ip" type: "InnerProduct" bottom: "d" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""
OTHER = """layer { name: "other" type: "Reduction" bottom: "%s" top: "other" loss_weight: 0.1 }"""
SIGMOID = """layer { name: "sigmoid" type: "Sigmoid" bottom: "d" top: "d" }"""


def fused(net):
    return [node.name for node in net.fused.nodes if len(node.layers) > 1]


def same_bits(text):
    plain, whole = make(text, whole=False), make(text, whole=True)
    watch(whole, iteration_begins=lambda: fill_with_nan(whole.net))
    plain.step(3)
    whole.step(3)
    assert np.array_equal(plain.data, whole.data, equal_nan=True)
    return whole.net


def test_a_pooling_comes_before_its_concat_and_takes_the_relus_along():
    net = same_bits("\n".join([DATA, BRANCHES, POOL, END]))
    assert fused(net) == ["ra+rb+cat+pool"]
    left_out = next(node.tops[0] for node in net.nodes if node.name == "cat")
    assert left_out.data_storage.buffer is None and left_out.diff_storage.buffer is None
    assert net.memory().peak < memory_of(net.plain, {}, in_arena=True).peak


@pytest.mark.parametrize("concat", [False, True])
def test_a_pooling_before_its_relu_gives_what_caffe_does_for_windows_of_nan(concat):
    """Caffe's maximum passes over NaN, so a window of nothing else gives -FLT_MAX, which no ReLU follows."""
    branches = BRANCHES if concat else BRANCHES.replace('bottom: "a" bottom: "b"', 'bottom: "a"')
    branches = branches if concat else branches.split('layer { name: "b"')[0].replace('"a"', '"c"')
    param = parse_text("\n".join([INPUT, branches, POOL, OTHER % "d"]), pb.NetParameter)
    param.state.phase = pb.TRAIN
    nets = [Net(param, Context(engine(), CaffeRandom(3), "counter", whole_passes=whole)) for whole in (False, True)]
    assert fused(nets[1]) == ["ra+rb+cat+pool" if concat else "ra+pool"]
    x = np.random.default_rng(1).standard_normal((IMAGES, 3, 33, 33)).astype(np.float32)
    x[1, :, 8:20, 8:20] = np.nan
    losses = []
    for net in nets:
        net.blob("x").data[...] = x
        losses.append(net.forward())
        net.backward()
    assert losses[0] == losses[1] < -1e37
    for one, other in zip(nets[0].parameters.owned, nets[1].parameters.owned, strict=True):
        assert np.array_equal(one.blob.diff, other.blob.diff, equal_nan=True)


def test_relus_stay_where_somebody_else_reads_them():
    assert fused(same_bits("\n".join([DATA, BRANCHES, POOL, END, OTHER % "a"])))[-1] == "cat+pool"


def test_relus_stay_where_their_signs_would_be_overwritten():
    assert fused(same_bits("\n".join([DATA, BRANCHES, POOL, SIGMOID, END])))[-1] == "cat+pool"


def test_a_concat_that_others_read_stays():
    assert fused(same_bits("\n".join([DATA, BRANCHES, POOL, END, OTHER % "c"]))) == ["a+ra", "b+rb"]
