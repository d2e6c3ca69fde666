"""Summary: what a net is made of, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.scale import Broadcasting
from fcaffe.net import Net
from fcaffe.net.node import Node
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.shapes import Shape, hollow_net


@dataclass(frozen=True)
class LayerSummary:
    """One layer; `macs` are its `multiply_adds`, `top_bytes` what its tops add to Caffe's memory figure."""

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    top_shapes: list[Shape]
    params: list[Shape]
    macs: int

    @property
    def param_count(self) -> int:
        return sum(math.prod(shape) for shape in self.params)

    @property
    def top_bytes(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self.top_shapes)


@dataclass(frozen=True)
class Summary:
    """A net: parameters shared by several layers count once; macs and bytes are those of one batch.

    Of the macs `channel_macs` are those of BatchNorm, Scale and Bias, which published figures mostly leave out.
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
    """Those of a forward pass: of the layer's products, or, of a BatchNorm, Scale or Bias, one for each value that it
    writes, and two more where a BatchNorm takes mean and variance of the batch. Other layers have none."""
    layer = node.layer
    if isinstance(layer, BatchNorm | Broadcasting):
        each = 3 if isinstance(layer, BatchNorm) and not layer.use_global_stats else 1
        return each * sum(top.count for top in node.tops)
    count: int = layer.macs(node.bottoms, node.tops) if hasattr(layer, "macs") else 0
    return count


def summarize(
    path: str,
    phase: int = pb.TRAIN,
    level: int = 0,
    stages: Sequence[str] = (),
    input_shape: Sequence[int] | None = None,
) -> Summary:
    """The summary of the net of a prototxt, whose data sets need not exist (see `hollow_net`)."""
    net, stood_in = hollow_net(path, phase, level, stages, input_shape)
    layers = [_layer(net, index, stood_in) for index in range(len(net.nodes))]
    net.close()
    return Summary(
        name=net.name,
        phase=pb.Phase.Name(phase),
        layers=layers,
        total_params=net.parameters.count,
        macs=sum(layer.macs for layer in layers),
        channel_macs=sum(
            layer.macs for layer, node in zip(layers, net.nodes, strict=True) if not hasattr(node.layer, "macs")
        ),
        memory_bytes=net.memory_bytes,
    )


def _layer(net: Net, index: int, stood_in: dict[str, str]) -> LayerSummary:
    node = net.nodes[index]
    return LayerSummary(
        name=node.name,
        type=stood_in.get(node.name, node.layer.type),
        bottoms=[net.blob_names[i] for i in node.bottom_ids],
        tops=[net.blob_names[i] for i in node.top_ids],
        top_shapes=[blob.shape for blob in node.tops],
        params=[blob.shape for blob in node.layer.blobs],
        macs=multiply_adds(node),
    )
