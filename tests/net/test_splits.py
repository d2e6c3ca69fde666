"""Loss weights on blobs that are split."""

import numpy as np

from fcaffe.net.splits import insert_splits
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.pycaffe.net import Net

TWO_SPLIT_TOPS = """
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "cut" type: "Slice" bottom: "data" top: "a" top: "b" loss_weight: 2 loss_weight: 3 }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
"""


def test_a_loss_weight_moves_to_the_split_of_its_own_top():
    layers = insert_splits(parse_text(TWO_SPLIT_TOPS, pb.NetParameter)).layer
    weights = {layer.name: list(layer.loss_weight) for layer in layers}
    assert weights == {"in": [], "cut": [], "a_cut_0_split": [2, 0], "b_cut_1_split": [3, 0], "sum": []}


def test_such_losses_count_once(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(TWO_SPLIT_TOPS)
    net = Net(path, pb.TRAIN)
    net.blobs["data"].data[...] = np.array([[10, 100]])
    assert net._forward(0, len(net.layers) - 1) == 2 * 10 + 3 * 100
