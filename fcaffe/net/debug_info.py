"""What `debug_info` prints of a layer: the mean magnitude of its blobs, after its forward and its backward pass."""

from __future__ import annotations

import math

from fcaffe import log
from fcaffe.net.blob import Array, Blob
from fcaffe.net.graph import Graph
from fcaffe.net.node import Node
from fcaffe.net.placements import Shard


def debug_forward(net: Graph, node: Node) -> None:
    for blob_id, blob in zip(node.top_ids, node.tops, strict=True):
        log.debug_top(node.name, net.blob_names[blob_id], _mean_magnitude(net, blob.data))
    for index, blob in enumerate(node.layer.blobs):
        name = net.parameters.display_name(node.layer, index)
        log.debug_param(node.name, name, _mean_magnitude(net, blob.data, blob))


def debug_backward(net: Graph, node: Node) -> None:
    for blob_id, blob, needed in zip(node.bottom_ids, node.bottoms, node.bottom_need_backward, strict=True):
        if needed:
            log.debug_bottom_diff(node.name, net.blob_names[blob_id], _mean_magnitude(net, blob.diff))
    for index, blob in enumerate(node.layer.blobs):
        if node.layer.param_propagate_down[index]:
            log.debug_param_diff(node.name, str(index), _mean_magnitude(net, blob.diff, blob))


def _mean_magnitude(net: Graph, values: Array, parameter: Blob | None = None) -> float:
    """The mean over all workers' parts of a split parameter."""
    context = net.context
    values = context.engine.as_float32(values)
    if parameter is not None and isinstance(parameter.placement, Shard):
        return context.workers.sum(float(abs(values).sum())) / math.prod(context.whole_shape(parameter))
    return float(abs(values).sum() / values.size) if values.size else 0.0
