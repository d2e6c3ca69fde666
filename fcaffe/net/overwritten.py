"""In-place layers that overwrite the values that their backward reads. In Caffe, too, their gradients are then
wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer
from fcaffe.net.node import Node


def overwritten_bottoms(nodes: Sequence[Node]) -> Iterator[tuple[Layer, int]]:
    """Each layer of a graph, and the index of its bottom, that overwrites this bottom and reads it in its backward.

    Layers that do not implement `saved`, such as those of user code, are not checked.
    """
    for node in nodes:
        layer = node.layer
        runs = any(node.bottom_need_backward) or (bool(layer.blobs) and any(layer.param_propagate_down))
        if not (node.needs_backward and runs) or type(layer).saved is Layer.saved:
            continue
        separate = [Blob(top.xp, top.shape) if top in node.bottoms else top for top in node.tops]
        lost = {*layer.saved(node.bottoms, node.tops)} & {*layer.saved(node.bottoms, separate)} & {*node.tops}
        yield from ((layer, index) for index, blob in enumerate(node.bottoms) if blob in lost)
