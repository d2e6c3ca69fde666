"""Layer types that cannot be converted to ONNX, with the reasons."""

from __future__ import annotations

from typing import Any

from fcaffe.errors import LayerError
from fcaffe.net.filter import filter_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.onnx.graph import Step, writes

_READS = "it reads a data set; give the deploy prototxt, whose inputs are blobs"
_TRAINS = "it is for training; give the deploy prototxt, whose last layer gives the scores"
_SCORES = "it compares scores with labels, which is for tests in training; give the deploy prototxt"
_AFTER = "no operator does its work; end the deploy prototxt in front of it, and do it in the program that runs the net"

REASONS = {
    **dict.fromkeys(
        ("AnnotatedData", "Data", "DenseImageData", "HDF5Data", "ImageData", "MemoryData", "WindowData"), _READS
    ),
    **dict.fromkeys(
        (
            *("BoxAnnotatorOHEM", "CenterLoss", "ContrastiveLoss", "DetectionLoss", "EuclideanLoss", "HingeLoss"),
            *("CTCLoss", "CombinedMargin", "CosinAddm", "CtcLoss", "DiceCoefLoss", "FocalLoss", "LabelSpecificAdd"),
            *("LabelSpecificMargin", "SigmoidFocalLoss", "SoftmaxFocalLoss", "WarpCTCLoss"),
            *("InfogainLoss", "L1Loss", "MarginInnerProduct", "MultiBoxLoss", "MultinomialLogisticLoss", "RegionLoss"),
            *("SigmoidCrossEntropyLoss", "SmoothL1Loss", "SmoothL1LossOHEM", "SoftmaxWithLoss", "SoftmaxWithLossOHEM"),
            *("TripletLoss", "Yolov3"),
        ),
        _TRAINS,
    ),
    **dict.fromkeys(("Accuracy", "DetectionEvaluate", "EvalDetection"), _SCORES),
    **dict.fromkeys(("CTCGreedyDecoder", "Proposal", "Yolov3DetectionOutput"), _AFTER),
    "PSROIPooling": "no operator of ONNX pools each bin from channels of its own; a net with ROIPooling can be written",
    "HDF5Output": "it writes a file; remove the layer from the prototxt, which makes its bottoms outputs",
    "Python": "it is user code in Python",
}


@writes(*REASONS)
def refuse(step: Step) -> list[str]:
    raise step.refuse(REASONS[step.layer.type])


def check_types(param: Any) -> None:
    """Raise LayerError for a net, in phase TEST, with a refused layer. Its data sets need not exist."""
    test = pb.NetParameter()
    test.CopyFrom(param)
    test.state.phase = pb.TEST
    for layer in filter_net(test, to_run=False).layer:
        if layer.type in REASONS:
            raise LayerError(f'layer "{layer.name}" ({layer.type}): cannot be written in ONNX: {REASONS[layer.type]}')
