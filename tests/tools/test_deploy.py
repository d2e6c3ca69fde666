"""Deploy nets of train_val nets, against those that people have written by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fcaffe.errors import NetError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net
from fcaffe.tools.deploy import deploy_net, input_shapes
from fcaffe.tools.shapes import hollow_net

ROOT = Path(__file__).parents[2]
MODELS = sorted(ROOT.glob("models/*/train_val*.prototxt"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_is_the_one_that_is_published(path: Path) -> None:
    param = read_net(str(path))
    made = deploy_net(param, input_shapes(param, str(path)))
    published = read_net(os.path.join(path.parent, "deploy.prototxt"))
    theirs, ours = (
        [(layer.name, layer.type, list(layer.bottom), list(layer.top)) for layer in net.layer]
        for net in (published, made)
    )
    assert ours == theirs
    shapes = [[(name, blob.shape) for name, blob, _ in hollow_net(net, "")[0].outputs()] for net in (made, published)]
    assert shapes[0] == shapes[1]


DATA = 'layer { name: "d" type: "Data" top: "x" top: "t" data_param { source: "none" batch_size: 4 } }'
SHAPES = {"x": (4, 3, 8, 8), "t": (4,), "u": (4, 2)}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (  # a regression, whose labels are sliced
            'layer { name: "s" type: "Slice" bottom: "t" top: "a" top: "b" }'
            'layer { name: "q" type: "Silence" bottom: "b" }'
            'layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" }'
            'layer { name: "l" type: "EuclideanLoss" bottom: "y" bottom: "a" top: "l" }',
            ["Input x", "InnerProduct y"],
        ),
        (  # an autoencoder: the picture is its own label
            'layer { name: "f" type: "Flatten" bottom: "x" top: "f" }'
            'layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" }'
            'layer { name: "l" type: "SigmoidCrossEntropyLoss" bottom: "y" bottom: "f" top: "l" }',
            ["Input x", "InnerProduct y", "Sigmoid prob"],
        ),
        (  # two tasks with labels of their own
            'layer { name: "e" type: "HDF5Data" top: "u" hdf5_data_param { source: "none" batch_size: 4 } }'
            'layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" }'
            'layer { name: "z" type: "InnerProduct" bottom: "x" top: "z" }'
            'layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "l" }'
            'layer { name: "m" type: "SigmoidCrossEntropyLoss" bottom: "z" bottom: "u" top: "m" }',
            ["Input x", "InnerProduct y", "InnerProduct z", "Softmax prob_t", "Sigmoid prob_u"],
        ),
        (  # an auxiliary classifier, and a Softmax that is there for tests
            'layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" }'
            'layer { name: "z" type: "InnerProduct" bottom: "x" top: "z" }'
            'layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "l" loss_weight: 0.3 }'
            'layer { name: "m" type: "SoftmaxWithLoss" bottom: "z" bottom: "t" top: "m" }'
            'layer { name: "p" type: "Softmax" bottom: "z" top: "p" include { phase: TEST } }'
            'layer { name: "a" type: "Accuracy" bottom: "p" bottom: "t" top: "a" include { phase: TEST } }',
            ["Input x", "InnerProduct z", "Softmax p"],
        ),
    ],
)
def test_what_hangs_on_labels_goes(layers: str, expected: list[str]) -> None:
    made = deploy_net(parse_text(DATA + layers, pb.NetParameter), SHAPES)
    assert [f"{layer.type} {layer.top[0]}" for layer in made.layer] == expected


def test_a_net_of_scores_alone_is_refused() -> None:
    text = DATA + 'layer { name: "l" type: "EuclideanLoss" bottom: "x" bottom: "t" top: "l" }'
    with pytest.raises(NetError, match="give a train_val net"):
        deploy_net(parse_text(text, pb.NetParameter), SHAPES)
