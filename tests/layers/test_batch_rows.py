"""Filter in a net: what comes behind it copes with any number of samples, also with none."""

import numpy as np

from tests.conftest import make_net

NET = """
layer { name: "in" type: "Input" top: "x" top: "keep" top: "label" input_param {
  shape { dim: 4 dim: 2 dim: 6 dim: 5 } shape { dim: 4 } shape { dim: 4 } } }
layer { name: "filter" type: "Filter" bottom: "x" bottom: "label" bottom: "keep" top: "kept" top: "kept_label" }
layer { name: "conv" type: "Convolution" bottom: "kept" top: "conv"
  convolution_param { num_output: 4 group: 2 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
layer { name: "scale" type: "Scale" bottom: "norm" top: "norm" scale_param { bias_term: true } }
layer { name: "relu" type: "PReLU" bottom: "norm" top: "norm" }
layer { name: "lrn" type: "LRN" bottom: "norm" top: "lrn" lrn_param { local_size: 3 } }
layer { name: "up" type: "Deconvolution" bottom: "lrn" top: "up"
  convolution_param { num_output: 2 kernel_size: 2 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "up" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "scores" type: "InnerProduct" bottom: "pool" top: "scores"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "kept_label" top: "loss" }
layer { name: "hinge" type: "HingeLoss" bottom: "scores" bottom: "kept_label" top: "hinge" }
layer { name: "accuracy" type: "Accuracy" bottom: "scores" bottom: "kept_label" top: "accuracy" }
"""


def run(net, keep):
    net.blob("x").data[...] = np.random.default_rng(3).normal(size=(4, 2, 6, 5))
    net.blob("label").data[...] = [0, 1, 2, 1]
    net.blob("keep").data[...] = keep
    net.parameters.clear_diffs()
    loss = net.forward()
    net.backward()
    return loss


def test_no_sample_gives_no_loss_and_no_gradient():
    net = make_net(NET)
    assert run(net, [0, 0, 0, 0]) == 0
    assert net.blob("kept").shape == (0, 2, 6, 5)
    assert net.blob("scores").shape == (0, 3)
    assert net.blob("accuracy").data == 0
    assert not any(parameter.blob.diff.any() for parameter in net.parameters.owned)
    assert not any(blob.data.any() for blob in net.layers[net.layer_names.index("norm")].blobs)


def test_samples_return_after_an_empty_batch():
    net, other = make_net(NET), make_net(NET)
    run(net, [0, 0, 0, 0])
    assert run(net, [0, 5, 0, -1]) == run(other, [0, 5, 0, -1]) > 0
    assert net.blob("kept_label").data.tolist() == [1, 1]
    for ours, theirs in zip(net.parameters.owned, other.parameters.owned, strict=True):
        np.testing.assert_array_equal(ours.blob.diff, theirs.blob.diff)
