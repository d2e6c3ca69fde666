"""Which blobs of a net have 16 bits, on an engine with factors of 16 bits."""

from __future__ import annotations

from fcaffe.net.blob import Blob
from fcaffe.net.graph import Graph
from fcaffe.net.traits import Half


def choose_types(net: Graph) -> None:
    """Give 16 bits to every activation all of whose layers can do with that; before any has memory.

    Inputs and outputs of the net stay float32, as do labels, losses and parameters.
    """
    half = net.context.engine.half_dtype
    if half is None:
        return
    groups = _Groups()
    wide = {net.blobs[index] for index in (*net.input_ids, *net.output_ids)}
    for node in net.nodes:
        rule = node.layer.traits.half
        if rule is Half.SAME or (rule is Half.SAME_IN_XP and net.context.engine.half_arithmetic):
            groups.join(node.blobs)
        elif rule in (Half.NONE, Half.SAME_IN_XP):
            wide.update(node.blobs)
        elif rule is Half.FIRST:
            wide.update((*node.bottoms[1:], *node.tops))
    wide_groups = {groups.first(blob) for blob in wide}
    for blob in net.blobs:
        if groups.first(blob) not in wide_groups:
            blob.set_dtype(half)
    for node in net.nodes:
        if node.layer.bottom_copy is not None:
            node.layer.bottom_copy.set_dtype(node.bottoms[0].dtype)


class _Groups:
    """Sets of blobs that have one type."""

    def __init__(self) -> None:
        self._parents: dict[Blob, Blob] = {}

    def first(self, blob: Blob) -> Blob:
        """The one that stands for all of its set."""
        while blob in self._parents:
            blob = self._parents[blob]
        return blob

    def join(self, blobs: list[Blob]) -> None:
        for blob in blobs[1:]:
            first, other = self.first(blobs[0]), self.first(blob)
            if first is not other:
                self._parents[other] = first
