"""A max pooling before its ReLU gives the bits of the two layers in Caffe's order."""

import numpy as np
import pytest

from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine

pytestmark = pytest.mark.usefixtures("on_each_engine")

NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 33 dim: 33 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "pool" type: "Pooling" bottom: "a" top: "d" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "sum" type: "Reduction" bottom: "d" top: "sum" loss_weight: 0.1 }"""


def test_windows_of_nan():
    """Caffe's maximum passes over NaN, so a window of nothing else gives -FLT_MAX, which no ReLU follows."""
    param = parse_text(NET, pb.NetParameter)
    param.state.phase = pb.TRAIN
    nets = [Net(param, Context(engine(), CaffeRandom(3), "counter", whole_passes=whole)) for whole in (False, True)]
    assert [node.name for node in nets[1].fused.nodes if node.members] == ["relu+pool"]
    x = np.random.default_rng(1).standard_normal((2, 3, 33, 33)).astype(np.float32)
    x[1, :, 8:20, 8:20] = np.nan
    losses = []
    for net in nets:
        net.blob("x").data[...] = x
        losses.append(net.forward())
        net.backward()
    assert losses[0] == losses[1] < -1e37
    for one, other in zip(nets[0].parameters.owned, nets[1].parameters.owned, strict=True):
        assert np.array_equal(one.blob.diff, other.blob.diff, equal_nan=True)
