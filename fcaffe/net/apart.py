"""Apart: layers in place whose backward reads their bottom get one of their own, instead of a copy of it in each pass.

    graph    conv: data -> x     norm: x -> x, which copies x for its backward     scale: x -> x, likewise
    apart    conv: data -> x'    norm: x' -> x"                                    scale: x" -> x

All blobs of the graph have the same values after a pass, so nobody sees this, but who looks amid a pass or begins one
in the middle; then the copies are made (`Apart.together`) and the graph runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.net.blob import Blob
from fcaffe.net.node import Node
from fcaffe.net.parameters import Parameters
from fcaffe.net.program import Program
from fcaffe.net.rewrite import separated, unseen_fusions


class Apart:
    """A `program` whose nodes stand for those of a graph, one for one. `unseen` as of `unseen_fusions`."""

    def __init__(self, nodes: Sequence[Node], outer: Sequence[Blob], parameters: Parameters) -> None:
        self.program = Program(separated(nodes), outer, parameters, inference=False)
        self.unseen = unseen_fusions(self.program.nodes)
        pairs = list(zip(nodes, self.program.nodes, strict=True))
        self._copies = [(own.layer, own.bottoms[0]) for node, own in pairs if node.in_place and not own.in_place]
        self._blobs: dict[Blob, Blob] = {}  # what stands for a blob of the graph, and that blob
        for node, own in pairs:
            self._blobs.update((new, old) for new, old in zip(own.blobs, node.blobs, strict=True) if new is not old)

    def share_gradients(self) -> None:
        """Before backward: each has the gradient of the blob that it stands for, which may have got other memory."""
        for new, old in self._blobs.items():
            new.share_diff(old)

    def together(self) -> None:
        """After a forward pass: let the layers of the graph find what they would have kept for backward."""
        for layer, bottom in self._copies:
            assert layer.bottom_copy is not None
            layer.bottom_copy.reshape(*bottom.shape)
            layer.bottom_copy.data[...] = bottom.data
