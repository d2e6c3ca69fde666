"""Layer types that are no part of a converted net, each with the reason."""

from __future__ import annotations

from typing import Any

from fcaffe.errors import LayerError
from fcaffe.net.filter import filter_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.onnx.graph import Step, writes

_READS = "it reads a data set, and a converted net gets its inputs from outside; give the deploy prototxt"
_TRAINS = "it is for training; give the deploy prototxt, whose last layer gives the scores"
_SCORES = "it compares scores with labels, which is for tests in training; give the deploy prototxt"

REASONS = {
    **dict.fromkeys(("Data", "HDF5Data", "ImageData", "MemoryData", "WindowData"), _READS),
    **dict.fromkeys(
        (
            "ContrastiveLoss",
            "EuclideanLoss",
            "HingeLoss",
            "InfogainLoss",
            "MultinomialLogisticLoss",
            "SigmoidCrossEntropyLoss",
            "SoftmaxWithLoss",
        ),
        _TRAINS,
    ),
    "Accuracy": _SCORES,
    "HDF5Output": "it writes a file; take the layer out of the prototxt, and its bottoms are outputs of the net",
    "Python": "what it does is code of yours, which only Python can run",
}


@writes(*REASONS)
def refuse(step: Step) -> list[str]:
    raise step.refuse(REASONS[step.layer.type])


def check_types(param: Any) -> None:
    """Refuse a net, in phase TEST, by what its NetParameter says: none of its data sets need be there for that."""
    test = pb.NetParameter()
    test.CopyFrom(param)
    test.state.phase = pb.TEST
    for layer in filter_net(test, to_run=False).layer:
        if layer.type in REASONS:
            raise LayerError(f'layer "{layer.name}" ({layer.type}): cannot be written in ONNX: {REASONS[layer.type]}')
