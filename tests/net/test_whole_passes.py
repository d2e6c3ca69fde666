"""Where a net runs whole passes only, layers do the work of others and arrays share memory; nothing else changes."""

import numpy as np
import pytest

from fcaffe.net import Context, Net
from fcaffe.net.blob import Storage
from fcaffe.net.run.arena import share_memory
from fcaffe.net.run.layout import Use
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.rng import CaffeRandom
from tests.engine_choice import engine, host

pytestmark = pytest.mark.usefixtures("on_each_engine")

# Chains in place, a branch that is read twice, a sum with its ReLU, an accuracy that gives no gradient, a second loss.
NET = """
layer { name: "in" type: "Input" top: "x" top: "label" input_param {
  shape { dim: 6 dim: 3 dim: 16 dim: 16 } shape { dim: 6 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "r1" type: "ReLU" bottom: "a" top: "a" }
layer { name: "c2" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "n2" type: "BatchNorm" bottom: "b" top: "b" }
layer { name: "s2" type: "Scale" bottom: "b" top: "b" scale_param { bias_term: true filler { value: 1.5 } } }
layer { name: "r2" type: "ReLU" bottom: "b" top: "b" }
layer { name: "c3" type: "Convolution" bottom: "b" top: "c"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "n3" type: "BatchNorm" bottom: "c" top: "c3" }
layer { name: "s3" type: "Scale" bottom: "c3" top: "c3" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "c3" bottom: "a" top: "d" }
layer { name: "r3" type: "ReLU" bottom: "d" top: "d" }
layer { name: "cat" type: "Concat" bottom: "d" bottom: "b" top: "e" }
layer { name: "pool" type: "Pooling" bottom: "e" top: "f" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "f" top: "f" dropout_param { dropout_ratio: 0.3 } }
layer { name: "ip" type: "InnerProduct" bottom: "f" top: "g"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "ip2" type: "InnerProduct" bottom: "d" top: "h"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "g" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "h" bottom: "label" top: "loss2" loss_weight: 0.3
  include { phase: TRAIN } }
layer { name: "accuracy" type: "Accuracy" bottom: "g" bottom: "label" top: "accuracy" }
"""


# The same kinds of layers with tops of their own: whoever did their work in place would leave those unwritten.
APART = """
layer { name: "in" type: "Input" top: "x" top: "label" input_param {
  shape { dim: 6 dim: 3 dim: 16 dim: 16 } shape { dim: 6 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "c1"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "r1" }
layer { name: "c2" type: "Convolution" bottom: "r1" top: "c2"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "n2" type: "BatchNorm" bottom: "c2" top: "n2" }
layer { name: "s2" type: "Scale" bottom: "n2" top: "s2" scale_param { bias_term: true } }
layer { name: "n3" type: "BatchNorm" bottom: "s2" top: "n3" }
layer { name: "s3" type: "Scale" bottom: "n3" top: "n3" scale_param { bias_term: true } }
layer { name: "r3" type: "ReLU" bottom: "n3" top: "r3" }
layer { name: "n4" type: "BatchNorm" bottom: "r3" top: "n4" }
layer { name: "s4" type: "Scale" bottom: "n4" top: "n4" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "n4" bottom: "r1" top: "sum" }
layer { name: "r4" type: "ReLU" bottom: "sum" top: "r4" }
layer { name: "ip" type: "InnerProduct" bottom: "r4" top: "h"
  inner_product_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "r5" type: "ReLU" bottom: "h" top: "r5" }
layer { name: "ip2" type: "InnerProduct" bottom: "r5" top: "g"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "g" bottom: "label" top: "loss" }
"""


def build(phase, text=NET, **context):
    param = parse_text(text, pb.NetParameter)
    upgrade_net(param, "net")
    param.state.phase = pb.Phase.Value(phase)
    net = Net(param, Context(engine(), CaffeRandom(3), noise="counter", seed=5, **context))
    random = np.random.default_rng(2)
    for parameter in net.parameters.owned:
        if parameter.layer.type == "BatchNorm":
            parameter.blob.data[...] = random.uniform(0.5, 1, parameter.blob.shape)
    return net


def feed(net, batch):
    random = np.random.default_rng(batch)
    net.blob("x").reshape(batch, 3, 16, 16)
    net.blob("label").reshape(batch)
    net.blob("x").data[...] = random.standard_normal((batch, 3, 16, 16))
    net.blob("label").data[...] = random.integers(0, 4, batch)


def test_which_layers_are_fused():
    def fused(net):
        return [node.name for node in net.fused.nodes if len(node.layer.layers) > 1]

    whole, apart = build("TRAIN", whole_passes=True), build("TRAIN", APART, whole_passes=True)
    residual = ["n3+s3+sum+r3+d_r3_0_split"]
    assert fused(whole) == ["c1+r1", "n2+s2+r2", *residual]
    residual = ["n4+s4+sum+r4"]
    assert fused(apart) == ["c1+r1", "n2+s2", "n3+s3+r3", *residual]
    assert [node.name for node in whole.plain.nodes] == whole.layer_names


def test_gradients_are_final_when_their_layer_is_done():
    net = build("TRAIN", whole_passes=True)
    count, final = net.parameters.extent, {}
    xp = net.context.engine.xp
    net.parameters.flatten(xp.zeros(count, np.float32), xp.zeros(count, np.float32))

    class Exchange:
        on_streams = True

        def begin(self, gradients):
            assert np.shares_memory(gradients, net.parameters.diff) and gradients.size == net.parameters.exchanged

        def ready(self, start):
            final.setdefault(start, net.parameters.diff[start:].copy())

        def finish(self):
            final["finished"] = net.parameters.diff.copy()

    feed(net, 6)
    net.forward()
    net.backward(exchange=Exchange())
    assert np.array_equal(final.pop("finished"), net.parameters.diff)
    assert len(final) > 5 and 0 in final
    for start, gradients in final.items():
        assert np.array_equal(gradients, net.parameters.diff[start:])


def test_blobs_that_fused_layers_leave_out_are_no_bad_ones():
    net = build("TRAIN", whole_passes=True)
    feed(net, 6)
    net.forward()
    net.blob("c3").data[...] = np.nan
    assert net.first_bad_blob() is None
    net.forward()
    net.layers[net.layer_names.index("s3")].blobs[1].data[2] = np.inf
    net.forward()
    assert net.first_bad_blob() == 'parameter 1 of layer "s3"'
    net.layers[net.layer_names.index("s3")].blobs[1].data[2] = 0
    net.layers[net.layer_names.index("c3")].blobs[0].data[...] *= 1e38
    net.forward()
    assert net.first_bad_blob() == 'blob "c" (top of layer "c3")'


def test_no_two_lie_together_that_are_in_use_together():
    random = np.random.default_rng(1)
    for _ in range(20):
        uses = []
        for _ in range(30):
            first, length, size = random.integers(0, 40), random.integers(0, 8), random.integers(1, 500)
            uses.append(Use(Storage(np, False, int(size)), [(int(first), int(first + length))]))
        share_memory(uses)
        for number, use in enumerate(uses):
            use.storage.buffer[:] = number
        for number, use in enumerate(uses):
            others = [other for other in uses if other.meets(use)]
            for other in others:
                assert other is use or not np.shares_memory(other.storage.buffer, use.storage.buffer), number


LOSS_OF_VALUES = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "scale" type: "Scale" bottom: "y" top: %s loss_weight: 0.5
  scale_param { bias_term: true filler { type: "uniform" min: 1 max: 2 } } }
"""


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("top", ['"y"', '"z"'], ids=["in place", "apart"])
def test_a_loss_of_many_values_keeps_its_weight(top, whole):
    """Also in place, where backward writes over it, and for more samples than before."""
    net = build("TRAIN", LOSS_OF_VALUES % top, whole_passes=whole)
    product, scale = (net.layers[index].blobs for index in (1, 2))
    for samples in 2, 2, 5, 3:
        net.blob("x").reshape(samples, 3)
        x = np.random.default_rng(samples).normal(size=(samples, 3)).astype(np.float32)
        net.blob("x").data[...] = net.context.engine.xp.asarray(x)
        for blob in (*product, *scale):
            blob.diff[...] = 0
        net.forward()
        net.backward()
        rows = x @ host(product[0].data).T + host(product[1].data)
        np.testing.assert_allclose(host(scale[1].diff), [0.5 * samples] * 4, rtol=1e-6)
        np.testing.assert_allclose(host(scale[0].diff), 0.5 * rows.sum(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(host(product[1].diff), 0.5 * samples * host(scale[0].data), rtol=1e-5)
