"""Layers that do the work of those behind them: Convolution that of ReLU, BatchNorm that of Scale and ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcaffe.net.graph import Node


class Fusions:
    """Which nodes of a net another one can stand in for: those right behind it that work in place on its only top.

    Only in whole passes, forward and then backward over all layers: who runs single layers, or looks at blobs between
    them, gets each layer's own work. `active` says whether the last forward pass was such a one.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.active = False
        self._leaders: dict[int, tuple[int, ...]] = {}  # index of a node -> those of the nodes it stands in for
        self._led: dict[int, int] = {}
        index = 0
        while index < len(nodes):
            behind = _in_place_behind(nodes, index)
            count = nodes[index].layer.absorbs([nodes[i].layer for i in behind]) if behind else 0
            if count:
                self._leaders[index] = behind[:count]
                nodes[index].layer.leads = True
                self._led.update(dict.fromkeys(behind[:count], index))
            index += 1 + count

    def activate(self, active: bool) -> None:
        """Tell the leaders of whom they do the work from now on."""
        if active is self.active:
            return
        self.active = active
        for leader, led in self._leaders.items():
            self.nodes[leader].layer.followers = tuple(self.nodes[i].layer for i in led) if active else ()

    def skips_forward(self, index: int) -> bool:
        return self.active and index in self._led

    def skips_backward(self, index: int) -> bool:
        return self.skips_forward(index) and self.nodes[self._led[index]].layer.absorbs_backward

    def done_with(self, index: int) -> tuple[int, ...]:
        """The nodes whose backward pass is through when that of this one is, from the last to the first."""
        if not self.active or not self.nodes[index].layer.absorbs_backward:
            return (index,)
        return (*reversed(self._leaders.get(index, ())), index)


def _in_place_behind(nodes: list[Node], index: int) -> tuple[int, ...]:
    tops = nodes[index].top_ids
    end = index + 1
    while len(tops) == 1 and end < len(nodes) and nodes[end].bottom_ids == nodes[end].top_ids == tops:
        end += 1
    return tuple(range(index + 1, end))
