"""Layer types that are no part of a converted net, each with the reason."""

from __future__ import annotations

from fcaffe.tools.onnx.graph import Step, writes

_READS = "it reads a data set, and a converted net gets its inputs from outside; give the deploy prototxt"
_TRAINS = "it is for training; give the deploy prototxt, whose last layer gives the scores"
_SCORES = "it compares scores with labels, which is for tests in training; give the deploy prototxt"

_REASONS = {
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


@writes(*_REASONS)
def refuse(step: Step) -> list[str]:
    raise step.refuse(_REASONS[step.layer.type])
