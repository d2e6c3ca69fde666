"""Plans the backward pass: selects the layers and bottoms on a path from a learning parameter to a loss."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe import log
from fcaffe.net.node import Node


def plan_backward(nodes: Sequence[Node], force: bool) -> None:
    """Set `needs_backward` and `bottom_need_backward` of every node, from the last to the first.

    `force` (the prototxt's force_backward) then selects everything except bottoms that never have a gradient. Finally
    the bottoms are selected to which Caffe's layers write gradients regardless of `propagate_down`.
    """
    under_loss: set[int] = set()
    skipped: set[int] = set()
    for node in reversed(nodes):
        weights = node.layer.loss_weights
        contributes = any(weight or i in under_loss for i, weight in zip(node.top_ids, weights, strict=True))
        if not contributes or (node.needs_backward and all(i in skipped for i in node.top_ids)):
            node.needs_backward = False
            node.bottom_need_backward = [False] * len(node.bottoms)
        (log.needs_backward if node.needs_backward else log.needs_no_backward)(node.name)
        for blob_id, needed in zip(node.bottom_ids, node.bottom_need_backward, strict=True):
            if contributes:
                under_loss.add(blob_id)
            if not needed:
                skipped.add(blob_id)
    if force:
        for node in nodes:
            node.needs_backward = True
            node.layer.param_propagate_down = [True] * len(node.layer.blobs)
    read = {i for node in nodes if node.needs_backward for i in node.top_ids}
    for node in nodes:
        layer = node.layer
        ignored = node.needs_backward and layer.ignores_propagate_down
        for index, blob_id in enumerate(node.bottom_ids):
            # Training from the command line exposes no gradient that no layer reads.
            written = ignored and (blob_id in read or not layer.context.whole_passes)
            if (force or written) and layer.allow_force_backward(index):
                node.bottom_need_backward[index] = True
