"""Layer types that cannot be converted to ONNX, with the reasons."""

from __future__ import annotations

from typing import Any

from fcaffe import plugins
from fcaffe.errors import LayerError
from fcaffe.layers.loss import LossLayer
from fcaffe.net import layer_types
from fcaffe.net.build.filter import filter_net
from fcaffe.net.registry import registered
from fcaffe.onnx.writing.graph import Step, writes
from fcaffe.tools.shapes import READERS

READS = "it reads a data set; give the deploy prototxt, whose inputs are blobs"
TRAINS = "it is for training; give the deploy prototxt, whose last layer gives the scores"
SCORES = "it compares scores with labels, which is for tests in training; give the deploy prototxt"

REASONS: dict[str, str] = {}


def refuse_types(reason: str, *layer_types: str) -> None:
    """Let the conversion of a net to ONNX end with this reason for layers of these types."""
    REASONS.update(dict.fromkeys(layer_types, reason))
    writes(*layer_types)(_refuse)


def _refuse(step: Step) -> list[str]:
    raise step.refuse(REASONS[step.layer.type])


def _losses() -> list[str]:
    classes = {name: registered(name) for name in layer_types()}
    return [name for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, LossLayer)]


refuse_types(READS, *READERS, "MemoryData")
refuse_types(TRAINS, *_losses())
refuse_types(SCORES, "Accuracy")
refuse_types("it writes a file; remove the layer from the prototxt, which makes its bottoms outputs", "HDF5Output")
refuse_types("it is user code in Python", "Python")


def check_types(param: Any) -> None:
    """Raise LayerError for a net, in phase TEST, with a refused layer. Its data sets need not exist."""
    plugins.load_own("onnx")
    for layer in filter_net(param).layer:
        if layer.type in REASONS:
            raise LayerError(f'layer "{layer.name}" ({layer.type}): cannot be written in ONNX: {REASONS[layer.type]}')
