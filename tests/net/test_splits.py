"""Loss weights on blobs that are split."""

import pytest

from fcaffe.errors import NetError
from fcaffe.net.build.splits import insert_splits
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text

TWO_SPLIT_TOPS = """
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "cut" type: "Slice" bottom: "data" top: "a" top: "b" loss_weight: 2 loss_weight: 3 }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
"""


def test_a_loss_weight_moves_to_the_split_of_its_own_top():
    layers = insert_splits(parse_text(TWO_SPLIT_TOPS, pb.NetParameter)).layer
    weights = {layer.name: list(layer.loss_weight) for layer in layers}
    assert weights == {"in": [], "cut": [], "a_cut_0_split": [2, 0], "b_cut_1_split": [3, 0], "sum": []}


READ_TWICE = """
layer { name: "in" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 4 dim: 2 } shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "a" type: "Softmax" bottom: "ip" top: "a" }
"""


def test_errors_speak_of_blobs_as_the_prototxt_names_them(net_from):
    sum_of_other_shapes = 'layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "ip" top: "sum" }'
    with pytest.raises(NetError, match=r'one shape: "data" \(4, 2\) and "ip" \(4, 3\)$'):
        net_from(READ_TWICE + sum_of_other_shapes)
    net = net_from(READ_TWICE + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }')
    assert net.nodes[-1].layer.param.bottom[0] == "ip_ip_0_split_1"
    net.blob("label").data[...] = 7
    with pytest.raises(NetError, match=r'of "label" .*"ip"'):
        net.forward()
