"""What a profile counts as spent in compiled operations."""

import numpy as np
import pytest

from fcaffe.engines import cpu_engine, find_onednn
from fcaffe.engines.onednn.tape import Tape
from fcaffe.engines.windows import Windows
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.tools.profile import counted


@pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp")
def test_primitives_and_plain_products_count():
    """The gradients of a convolution of one value are plain products."""
    engine, windows = cpu_engine("fp32", "onednn"), Windows((1, 1), (1, 1), (0, 0), (1, 1))
    x, dx, y = (np.ones((2, 5, 5, channels), np.float32).transpose(0, 3, 1, 2) for channels in (16, 16, 32))
    weights = np.ones((32, 16, 1, 1), np.float32)
    with counted(engine) as spent:
        engine.convolution_forward(x, weights, None, y, windows, 1)
        forward = len(spent)
        engine.convolution_backward_data(y, weights, dx, windows, 1)
        engine.convolution_backward_weights(x, y, weights, windows, 1, False)
    assert forward and len(spent) == forward + 2 and min(spent) > 0
    engine.convolution_forward(x, weights, None, y, windows, 1)
    assert len(spent) == forward + 2


NET = """
layer { name: "in" type: "Input" top: "x" top: "t" input_param {
  shape { dim: 8 dim: 64 dim: 14 dim: 14 } shape { dim: 8 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "r" type: "ReLU" bottom: "a" top: "a" }
layer { name: "c2" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "b" top: "d"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "d" bottom: "t" top: "loss" }"""


@pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp")
@pytest.mark.parametrize("recorded_before", [False, True])
def test_recordings_count_what_they_play_as_long_as_the_body_lasts(recorded_before, monkeypatch):
    engine = cpu_engine("fp32", "onednn")
    net = Net(
        parse_text(NET, pb.NetParameter), Context(engine, CaffeRandom(3), "counter", inference=True, whole_passes=True)
    )
    net.blob("x").data[...] = 1
    played, play = [], Tape.__call__
    monkeypatch.setattr(Tape, "__call__", lambda tape: (played.append(tape), play(tape)))

    def passes():
        for _ in range(4):
            net.forward()

    with engine.fixed_weights():
        check_counts(engine, net, passes, played, recorded_before)


def check_counts(engine, net, passes, played, recorded_before):
    replay = vars(net.fused).pop("replay", None) or net.fused.replay
    vars(net.fused)["replay"] = None
    net.forward()
    with counted(engine) as spent:
        net.forward()
        one_by_one = len(spent)
    vars(net.fused)["replay"] = replay
    if recorded_before:
        passes()
    with counted(engine) as spent:
        if not recorded_before:
            passes()
        before = len(spent)
        played.clear()
        net.forward()
        assert len(spent) == before + one_by_one
        assert played
    ended = len(spent)
    passes()
    assert len(spent) == ended
