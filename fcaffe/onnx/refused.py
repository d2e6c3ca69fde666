"""Layer types that cannot be converted to ONNX, with the reasons."""

from __future__ import annotations

from typing import Any

from fcaffe.errors import LayerError
from fcaffe.layers.loss import LossLayer
from fcaffe.net import layer_types
from fcaffe.net.build.filter import filter_net
from fcaffe.net.registry import registered
from fcaffe.onnx.graph import Step, writes
from fcaffe.tools.shapes import READERS

_READS = "it reads a data set; give the deploy prototxt, whose inputs are blobs"
_TRAINS = "it is for training; give the deploy prototxt, whose last layer gives the scores"
_SCORES = "it compares scores with labels, which is for tests in training; give the deploy prototxt"
_AFTER = "no operator does its work; end the deploy prototxt in front of it, and do it in the program that runs the net"

_BY_REASON = {
    _READS: (*READERS, "MemoryData"),
    _TRAINS: (
        *(name for name in layer_types() if isinstance(kind := registered(name), type) and issubclass(kind, LossLayer)),
        *("BoxAnnotatorOHEM", "CombinedMargin", "CosinAddm", "LabelSpecificAdd", "LabelSpecificMargin"),
        "MarginInnerProduct",
    ),
    _SCORES: ("Accuracy", "DetectionEvaluate", "EvalDetection"),
    _AFTER: ("CTCGreedyDecoder", "Proposal", "Yolov3DetectionOutput"),
}
REASONS = {
    **{layer_type: reason for reason, types in _BY_REASON.items() for layer_type in types},
    "PSROIPooling": "no operator of ONNX pools each bin from channels of its own; a net with ROIPooling can be written",
    "HDF5Output": "it writes a file; remove the layer from the prototxt, which makes its bottoms outputs",
    "Python": "it is user code in Python",
}


@writes(*REASONS)
def refuse(step: Step) -> list[str]:
    raise step.refuse(REASONS[step.layer.type])


def check_types(param: Any) -> None:
    """Raise LayerError for a net, in phase TEST, with a refused layer. Its data sets need not exist."""
    for layer in filter_net(param, to_run=False).layer:
        if layer.type in REASONS:
            raise LayerError(f'layer "{layer.name}" ({layer.type}): cannot be written in ONNX: {REASONS[layer.type]}')
