"""Which blobs of a net have 16 bits, on an engine with factors of 16 bits."""

from __future__ import annotations

from fcaffe.net.graph import Graph
from fcaffe.net.traits import Half


def choose_types(net: Graph) -> None:
    """Give 16 bits to every activation all of whose layers can do with that; before any has memory.

    Inputs and outputs of the net stay float32, as do labels, losses and parameters.
    """
    half = net.context.engine.half_dtype
    if half is None:
        return
    wide = {net.blobs[index] for index in (*net.input_ids, *net.output_ids)}
    of_one_type = []  # the blobs of each layer that gives them one type
    for node in net.nodes:
        rule = node.layer.traits.half
        if rule is Half.SAME or (rule is Half.SAME_IN_XP and net.context.engine.half_arithmetic):
            of_one_type.append(set(node.blobs))
        elif rule in (Half.NONE, Half.SAME_IN_XP):
            wide.update(node.blobs)
        elif rule is Half.FIRST:
            wide.update((*node.bottoms[1:], *node.tops))
    before = -1
    while len(wide) > before:
        before = len(wide)
        for blobs in of_one_type:
            if not wide.isdisjoint(blobs):
                wide |= blobs
    for blob in net.blobs:
        if blob not in wide:
            blob.set_dtype(half)
    for node in net.nodes:
        if node.layer.bottom_copy is not None:
            node.layer.bottom_copy.set_dtype(node.bottoms[0].dtype)
