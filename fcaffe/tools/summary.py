"""Summaries of a net (its layers with their shapes, parameters, multiply-adds and memory) and of a model file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.scale import Broadcasting
from fcaffe.model_files import Model
from fcaffe.net import Net
from fcaffe.net.build.filter import filter_net
from fcaffe.net.node import Node
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import read_net_for
from fcaffe.tools.shapes import Shape, hollow_net

COLUMNS = ("layer", "type", "top shapes", "parameters", "multiply-adds", "bytes of tops")


@dataclass(frozen=True)
class LayerSummary:
    """One layer. `macs` are its `multiply_adds`; `top_bytes` is its part of Caffe's memory figure.

    `fork` is the fork of Caffe whose layer it is, if it is not BVLC Caffe's.
    """

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    top_shapes: list[Shape]
    params: list[Shape]
    macs: int
    fork: str | None = None

    @property
    def param_count(self) -> int:
        return sum(math.prod(shape) for shape in self.params)

    @property
    def top_bytes(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self.top_shapes)

    def cells(self) -> tuple[str, ...]:
        """The layer as a row of a table with COLUMNS. Numbers are empty instead of 0."""
        texts = [shape_text(shape) for shape in self.top_shapes]
        shapes = f"{len(texts)} of {texts[0]}" if len(texts) > 1 and len(set(texts)) == 1 else ", ".join(texts)
        numbers = (self.param_count, self.macs, self.top_bytes)
        return (self.name, self.type, shapes, *(f"{number:,}" if number else "" for number in numbers))


@dataclass(frozen=True)
class Summary:
    """A net. Shared parameters count once; macs and bytes are those of one batch.

    `channel_macs` is the part of `macs` in BatchNorm, Scale and Bias, which most published figures omit.
    """

    name: str
    phase: str
    layers: list[LayerSummary]
    total_params: int
    macs: int
    channel_macs: int
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "phase": self.phase,
            "layers": [
                {"name": layer.name, "type": layer.type, "bottoms": layer.bottoms, "tops": layer.tops}
                | ({"fork": layer.fork} if layer.fork else {})
                for layer in self.layers
            ],
            "blobs": {
                top: list(shape)
                for layer in self.layers
                for top, shape in zip(layer.tops, layer.top_shapes, strict=True)
            },
            "params": {layer.name: [list(shape) for shape in layer.params] for layer in self.layers if layer.params},
            "total_params": self.total_params,
            "macs": self.macs,
            "memory_bytes": self.memory_bytes,
        }


def multiply_adds(node: Node) -> int:
    """Multiply-adds of a layer's forward pass.

    BatchNorm, Scale and Bias count one for each value that they write. A BatchNorm that computes the mean and variance
    of the batch counts three. Layers without products count none.
    """
    layer = node.layer
    if isinstance(layer, BatchNorm | Broadcasting):
        each = 3 if isinstance(layer, BatchNorm) and not layer.use_global_stats else 1
        return each * sum(top.count for top in node.tops)
    return layer.macs(node.bottoms, node.tops)


def work_of_passes(node: Node, trained: bool = True) -> tuple[tuple[float, float], tuple[float, float]]:
    """(operations of products, bytes of bottoms and tops) for the forward and the backward pass of a layer.

    Backward computes the gradients of the weights and, where they are wanted, those of the bottoms. In a net that is
    not `trained` every layer is taken to have both. Reading data counts nothing.
    """
    layer = node.layer
    macs = layer.macs(node.bottoms, node.tops)
    bottoms, tops = (4 * sum(blob.count for blob in blobs) for blobs in (node.bottoms, node.tops))
    backward = node.needs_backward or not trained
    ways = any(layer.param_propagate_down) + (any(node.bottom_need_backward) or not trained) if backward else 0
    moved = (bottoms + tops, 2 * bottoms + tops if backward else 0) if node.bottoms else (0, 0)
    return (2 * macs, moved[0]), (2 * ways * macs, moved[1])


def summarize(
    path: str,
    phase: int = pb.TRAIN,
    level: int = 0,
    stages: Sequence[str] = (),
    input_shape: Sequence[int] | None = None,
) -> Summary:
    """The summary of the net of a prototxt. Its data sets need not exist (see `hollow_net`)."""
    param = filter_net(read_net_for(path, phase, level, stages))
    net, stood_in = hollow_net(param, path, input_shape)
    layers = _layer_summaries(net, stood_in)
    net.close()
    return Summary(
        name=net.name,
        phase=pb.Phase.Name(phase),
        layers=layers,
        total_params=net.parameters.count,
        macs=sum(layer.macs for layer in layers),
        channel_macs=sum(
            layer.macs
            for layer, node in zip(layers, net.nodes, strict=True)
            if isinstance(node.layer, BatchNorm | Broadcasting)
        ),
        memory_bytes=net.memory_bytes,
    )


def _layer_summaries(net: Net, stood_in: Mapping[str, str]) -> list[LayerSummary]:
    return [
        LayerSummary(
            name=node.name,
            type=stood_in.get(node.name, node.layer.type),
            bottoms=[net.blob_names[i] for i in node.bottom_ids],
            tops=[net.blob_names[i] for i in node.top_ids],
            top_shapes=[blob.shape for blob in node.tops],
            params=[blob.shape for blob in node.layer.blobs],
            macs=multiply_adds(node),
            fork=node.layer.fork,
        )
        for node in net.nodes
    ]


def shape_text(shape: Shape) -> str:
    """A shape for people: "2 x 3 x 4", or "scalar"."""
    return " x ".join(map(str, shape)) or "scalar"


def model_to_json(model: Model) -> dict[str, Any]:
    """Layers with their blobs, and totals. Shared blobs count once."""
    return {
        "name": model.param.name,
        "layers": [
            {
                "name": layer.name,
                "type": layer.param.type,
                "blobs": [list(blob.shape) for blob in layer.blobs],
                "dtypes": ["" if blob.data is None else str(blob.data.dtype) for blob in layer.blobs],
                "diffs": any(blob.diff is not None for blob in layer.blobs),
            }
            for layer in model.layers
        ],
        "params": {layer.name: [list(blob.shape) for blob in layer.blobs] for layer in model.layers if layer.blobs},
        "total_params": total_params(model),
        "bytes": sum(blob.nbytes for layer in model.layers for blob in layer.blobs),
    }


def total_params(model: Model) -> int:
    shared = {(id(layer), index) for layer, index, _, _ in model.shared()}
    return sum(
        math.prod(blob.shape)
        for layer in model.layers
        for index, blob in enumerate(layer.blobs)
        if blob.data is not None and (id(layer), index) not in shared
    )
