"""Layers that do the work of those behind them: Convolution that of ReLU, BatchNorm that of Scale and ReLU, or of Scale
and the sum that it is a term of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcaffe.net.blob import Blob
    from fcaffe.net.graph import Node


class Fusions:
    """Which nodes of a net another one can stand in for: those right behind it, each the only reader of what the one
    before it makes.

    Only in whole passes, forward and then backward over all layers: who runs single layers, or looks at blobs between
    them, gets each layer's own work. `active` says whether the last forward pass was such a one.
    """

    def __init__(self, nodes: list[Node], inference: bool) -> None:
        self.nodes = nodes
        self.active = False
        self._leaders: dict[int, tuple[int, ...]] = {}  # index of a node -> those of the nodes it stands in for
        self._led: dict[int, int] = {}
        index = 0
        while index < len(nodes):
            behind = list(_line_behind(nodes, index, inference))
            count = nodes[index].layer.absorbs([node.layer for node in behind]) if behind else 0
            if count:
                led = tuple(range(index + 1, index + 1 + count))
                self._leaders[index] = led
                nodes[index].layer.leads = True
                self._led.update(dict.fromkeys(led, index))
            index += 1 + count

    def activate(self, active: bool) -> None:
        """Tell the leaders of whom they do the work from now on."""
        if active is self.active:
            return
        self.active = active
        for leader, led in self._leaders.items():
            self.nodes[leader].layer.followers = tuple(self.nodes[i] for i in led) if active else ()

    def skips_forward(self, index: int) -> bool:
        return self.active and index in self._led

    def skips_backward(self, index: int) -> bool:
        return self.skips_forward(index) and self.nodes[self._led[index]].layer.absorbs_backward

    def done_with(self, index: int) -> tuple[int, ...]:
        """The nodes whose backward pass is through when that of this one is, from the last to the first."""
        if not self.active or not self.nodes[index].layer.absorbs_backward:
            return (index,)
        return (*reversed(self._leaders.get(index, ())), index)

    def is_spread(self, index: int) -> bool:
        """Whether this node is of a group, a leader and those it stands in for, that do not all work in place."""
        led = self._leaders.get(self._led.get(index, index), ())
        return not all(self.nodes[i].in_place for i in led)

    def blobs_of(self, index: int) -> tuple[list[Blob], list[Blob]]:
        """What is read and what is written at a node's turn now: its bottoms and tops; or, by the leader of a spread
        group, those of all but what lies between them, which is never written; or, by others of that group, nothing."""
        node = self.nodes[index]
        if not (self.active and self.is_spread(index)):
            return node.bottoms, node.tops
        if index in self._led:
            return [], []
        group = [node, *(self.nodes[i] for i in self._leaders[index])]
        made = {blob for each in group for blob in each.tops}
        others = [blob for each in group[1:] for blob in each.bottoms if blob not in made]
        return [*node.bottoms, *others], group[-1].tops


def _line_behind(nodes: list[Node], index: int, inference: bool) -> Iterator[Node]:
    """The nodes right behind one, each with the top of the one before among its bottoms: those in place, and those that
    may be absorbed apart, if they give all their bottoms a gradient wherever backward runs."""
    before = nodes[index]
    for node in nodes[index + 1 :]:
        if len(before.top_ids) != 1 or node.bottom_ids.count(before.top_ids[0]) != 1 or any(before.layer.loss_weights):
            return
        whole = inference or (node.needs_backward and all(node.bottom_need_backward))
        if not (node.in_place or (node.layer.is_absorbed_apart and whole)):
            return
        yield node
        before = node
