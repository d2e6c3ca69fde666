"""Concat and max pooling in the opposite order; ReLUs of the bottoms run last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcaffe.engines.elementwise import consecutive_slices
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.concat import Concat
from fcaffe.layers.pooling import Pooling
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Touching, Want, is_layer, node_in_place_of


class PooledConcat(FusedLayer):
    """top = concat(max_pool(bottom) for each bottom), or with ReLUs the larger of that and 0.

    Pooling treats each channel separately, so it may come before the Concat. The Concat then copies a quarter of the
    values, and its own top is not materialised. If all bottoms come from ReLUs, these run last, as in PoolingReLU.
    """

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        """`nodes` are the ReLUs of all bottoms, or none, the Concat and the pooling."""
        super().__init__(nodes, want)
        *relus, concat, pooling = (node.layer for node in nodes)
        assert isinstance(concat, Concat) and isinstance(pooling, Pooling)
        self.concat, self.pooling = concat, pooling
        self.with_relu = bool(relus)
        self._part = Blob(self.xp, (), channels_last=True, dtype=nodes[-1].tops[0].dtype)  # one pooled bottom
        self._memories = [Blob(self.xp, (), channels_last=True) for _ in nodes[-2].bottoms]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for blob, memory in zip(bottom, self._memories, strict=True):
            memory.reshape(*blob.shape[:2], *top[0].shape[2:])

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self._memories, *(top if self.with_relu else [])]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        whole = top[0].data
        for blob, memory, part in self._parts(bottom):
            y = self._workspace(memory)
            self.engine.max_pool_forward(blob.data, y, memory.data, self.pooling.windows)
            self.engine.copy(y, whole[:, part])
        if self.with_relu:
            self.engine.relu_of_maxima(whole)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        whole = (self.before_relu(top[0]) if self.with_relu else top[0]).diff
        for (blob, memory, part), down in zip(self._parts(bottom), propagate_down, strict=True):
            if down:
                dy = self._workspace(memory)
                self.engine.copy(whole[:, part], dy)
                self.engine.max_pool_backward(dy, memory.data, blob.diff, self.pooling.windows)

    def _parts(self, bottom: list[Blob]) -> Iterator[tuple[Blob, Blob, slice]]:
        """Yields each bottom with its indices of maxima and its slice of the top."""
        return zip(bottom, self._memories, consecutive_slices(self.concat.sizes(bottom)), strict=True)

    def _workspace(self, memory: Blob) -> Array:
        self._part.reshape(*memory.shape)
        return self._part.data


def pooled_before_concat(nodes: list[Node], want: Want) -> list[Node]:
    """In a training program, replace each Concat that only a pooling with a stride reads by a PooledConcat.

    The ReLUs of its bottoms stay if another node needs their tops.
    """
    if want.visible is None or not want.gradients:
        return nodes
    touching, made = Touching(nodes), dict[int, Node | None](enumerate(nodes))
    for index, concat in enumerate(nodes):
        pair = touching.positions(concat.tops[0].data_storage) if is_layer(concat.layer, Concat) else []
        if len(pair) != 2 or not _fits(concat, nodes[pair[1]]):
            continue
        for replaced in ([*_relus(touching, *pair), *pair], pair):
            members = [nodes[position] for position in replaced]
            node = node_in_place_of(PooledConcat(members, want), members, *members[-2:])
            if touching.hides(node, replaced, want) and not touching.overwriting(node, replaced):
                made.update(dict.fromkeys(replaced))
                made[index] = node
                break
    return [node for node in made.values() if node]


def _fits(concat: Node, pooling: Node) -> bool:
    """Whether the pooling is a max pooling that reduces the size, and can come before the Concat."""
    layer = pooling.layer
    if not is_layer(layer, Pooling) or not layer.finds_maxima or min(layer.windows.stride) == 1:
        return False
    if not is_layer(concat.layer, Concat) or concat.layer.axis != 1 or any(concat.layer.loss_weights):
        return False
    if not concat.needs_backward == pooling.needs_backward == pooling.bottom_need_backward[0]:
        return False
    channels = concat.layer.sizes(concat.bottoms)
    return layer.engine.pools_parts_alike(concat.bottoms[0].shape[0], channels, layer.windows)


def _relus(touching: Touching, concat: int, pooling: int) -> list[int]:
    """The in-place ReLUs that write the bottoms, if all bottoms come from one."""
    nodes, found = touching.nodes, []
    layer = nodes[pooling].layer
    assert isinstance(layer, Pooling)
    for blob, down in zip(nodes[concat].bottoms, nodes[concat].bottom_need_backward, strict=True):
        position = [p for p in touching.positions(blob.data_storage) if p < concat][-1]
        relu = nodes[position]
        if not layer.fills_windows or not (relu.in_place and is_plain_relu(relu.layer) and relu.tops[0] is blob):
            return []
        if not relu.needs_backward == relu.bottom_need_backward[0] == down:
            return []
        found.append(position)
    return found
