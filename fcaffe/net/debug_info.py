"""What `debug_info` prints of a layer: the mean magnitude of its blobs, after its forward and its backward pass."""

from __future__ import annotations

from fcaffe import log
from fcaffe.net.blob import Array
from fcaffe.net.graph import Graph
from fcaffe.net.node import Node


def debug_forward(net: Graph, node: Node) -> None:
    for blob_id, blob in zip(node.top_ids, node.tops, strict=True):
        log.debug_forward(node.name, "top blob", net.blob_names[blob_id], _mean_magnitude(net, blob.data))
    for index, blob in enumerate(node.layer.blobs):
        name = net.parameters.display_name(node.layer, index)
        log.debug_forward(node.name, "param blob", name, _mean_magnitude(net, blob.data))


def debug_backward(net: Graph, node: Node) -> None:
    for blob_id, blob, needed in zip(node.bottom_ids, node.bottoms, node.bottom_need_backward, strict=True):
        if needed:
            log.debug_backward(node.name, "bottom blob", net.blob_names[blob_id], _mean_magnitude(net, blob.diff))
    for index, blob in enumerate(node.layer.blobs):
        if node.layer.param_propagate_down[index]:
            log.debug_backward(node.name, "param blob", str(index), _mean_magnitude(net, blob.diff))


def _mean_magnitude(net: Graph, values: Array) -> float:
    values = net.context.engine.as_float32(values)
    return float(abs(values).sum() / values.size) if values.size else 0.0
