"""Training passes of which nodes are recorded are, to the bit, those of the nodes themselves."""

import numpy as np
import pytest

from fcaffe.layers.inner_product import InnerProduct
from fcaffe.net import Context, Net
from fcaffe.net import registry as layer_types
from fcaffe.net.recorded_training import SETTLED
from fcaffe.net.weights import share_weights
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine
from tests.net.test_whole_passes import NET

pytestmark = pytest.mark.usefixtures("on_each_engine")

SMALL_NET = """
layer { name: "in" type: "Input" top: "x" top: "t" input_param {
  shape { dim: 8 dim: 1 dim: 14 dim: 14 } shape { dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "a" top: "b" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "b" top: "c"
  inner_product_param { num_output: 30 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "ip2" type: "InnerProduct" bottom: "c" top: "d"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "d" bottom: "t" top: "loss" }
"""


def two_nets(text):
    """One whose nodes may be recorded, and one whose engine records nothing."""
    nets = []
    for records in (True, False):
        used = engine()
        used.records &= records
        nets.append(Net(parse_text(text, pb.NetParameter), Context(used, CaffeRandom(3), "counter", whole_passes=True)))
    return nets


def gradients(net):
    return [blob.diff.copy() for layer in net.layers for blob in layer.blobs]


def check_passes(nets, between=lambda number, net: None, passes=8):
    """The same gradients after each of these passes. Every third one adds to those of the pass before."""
    for number in range(passes):
        found = []
        for net in nets:
            between(number, net)
            random = np.random.default_rng(number)
            for name in [name for name in ("x", "t", "label") if name in net.blob_names]:
                x = random.standard_normal(net.blob(name).shape)
                net.blob(name).data[...] = abs(x) % 4 // 1 if x.ndim == 1 else x
            if number % 3:
                net.parameters.clear_diffs()
            loss = net.forward()
            net.backward()
            found.append([np.float32(loss), *gradients(net)])
            for parameter in net.parameters.owned:
                parameter.blob.data[...] *= np.float32(0.99)
        for a, b in zip(*found, strict=True):
            assert a.tobytes() == b.tobytes(), f"pass {number}"


@pytest.mark.parametrize("text", [SMALL_NET, NET], ids=["small", "whole"])
def test_the_same_bits(text):
    check_passes(two_nets(text))


def test_layers_are_not_asked_again(monkeypatch):
    nets = two_nets(SMALL_NET)
    asked = []
    for node in nets[0].fused.nodes:
        for name in ("forward", "backward"):
            work = getattr(node.layer, name)
            monkeypatch.setattr(
                node.layer,
                name,
                lambda *arguments, what=(node.name, name), work=work: (asked.append((number, *what)), work(*arguments))[
                    1
                ],
            )
    number = 0

    def between(now, net):
        nonlocal number
        number = now
        if now == 8 and net is nets[0]:  # memory that has moved ends it
            storage = net.blob("x")._data
            storage.replace(storage.buffer.copy())

    check_passes(nets, between, 16)
    passes = [now for now, *what in asked if what == ["conv", "forward"]]
    if not nets[0].context.engine.records:
        assert passes == list(range(16))
        return
    assert passes == [*range(SETTLED), *range(8, 8 + SETTLED)]
    backward = [now for now, *what in asked if what == ["pool", "backward"]]
    assert backward == passes
    assert [now for now, *what in asked if what == ["loss", "forward"]] == list(range(16))


def test_other_shapes():
    def between(number, net):
        net.blob("x").reshape(2 if number in (5, 6) else 8, 1, 14, 14)
        net.blob("t").reshape(*net.blob("x").shape[:1])

    check_passes(two_nets(SMALL_NET), between, 14)


def test_what_a_script_does_between_the_passes_counts():
    """Backward runs on the memory that is there by then."""

    def between(number, net):
        if number:
            net.start_forward()
            storage = net.blob("d")._diff
            storage.replace(storage.buffer.copy())

    check_passes(two_nets(SMALL_NET), between)


def test_parameters_of_another_net():
    nets, others = two_nets(SMALL_NET), two_nets(SMALL_NET)
    for other in others:
        other.layers[1].blobs[0].data[...] = 0.1

    def between(number, net):
        if number == 5:
            share_weights(net, others[nets.index(net)])

    check_passes(nets, between, 14)


def test_a_layer_derived_from_one_that_may_be_recorded(monkeypatch):
    """Its own passes may be no operators."""

    class Capped(InnerProduct):
        def forward(self, bottom, top):
            super().forward(bottom, top)
            np.minimum(top[0].data, 0.1, out=top[0].data)

    monkeypatch.setitem(layer_types._registry, "Capped", Capped)
    check_passes(two_nets(SMALL_NET.replace('name: "ip" type: "InnerProduct"', 'name: "ip" type: "Capped"')))


def test_large_nodes_stay_as_they_are(monkeypatch):
    monkeypatch.setattr("fcaffe.net.recorded_training.LARGE", 1)
    nets = two_nets(SMALL_NET)
    check_passes(nets)
    assert not any(nets[0].fused.training._forward.values())


def test_an_operator_that_numpy_has_a_part_in_is_called_again():
    used = engine()
    if not used.records:
        pytest.skip("this engine records nothing")
    x, y = np.ones((4, 16, 32, 32), np.float32), np.zeros((4, 16, 32, 32), np.float32)
    by_library, calls = used.relu_forward, []

    def mixed(x, y, slope):
        calls.append(1)
        by_library(x, y, slope)
        np.multiply(y, 3, out=y)

    for operator, times in ((by_library, 0), (mixed, 3)):  # in vain, for good, and when it is played
        used.relu_forward = operator
        play = used.taken_down(lambda: used.relu_forward(x, y, 0), [x, y])
        expected = y.copy()
        y[...] = 0
        play()
        assert np.array_equal(y, expected) and len(calls) == times
        vars(used).pop("relu_forward", None)


def test_arrays_that_are_gone_afterwards_are_not_recorded():
    used = engine()
    x, y = np.ones((4, 16, 32, 32), np.float32), np.zeros((4, 16, 32, 32), np.float32)
    assert used.taken_down(lambda: used.relu_forward(x.copy(), y, 0), [x, y]) is None
    assert np.array_equal(x, y)
    with used.fixed_weights():  # whatever is made of weights now is not that of later ones
        assert used.taken_down(lambda: used.relu_forward(x, y, 0), [x, y]) is None
