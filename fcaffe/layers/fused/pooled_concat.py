"""Concat and max pooling, in the opposite order, with the ReLUs before them behind both."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.concat import Concat, consecutive_slices
from fcaffe.layers.pooling import MAX, Pooling
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want, changes_what_backward_sees, node_in_place_of, renumbered
from fcaffe.net.storage import Storage


class PooledConcat(FusedLayer):
    """top = max_pool(bottoms) side by side; with ReLUs the larger of that and 0.

    Pooling takes each channel by itself, so it may come before the Concat, which then goes over a quarter of the
    values, and what would lie between the two is never written. The bits are the same. So they are if the ReLUs of the
    branches come last of all, see PoolingReLU; then what those would read need not be kept for backward.

    Where other shapes follow, with which the parts would get other bits, the bottoms are pooled side by side.
    """

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        """Of the ReLUs of all bottoms, or of none, the Concat and the pooling."""
        super().__init__(nodes, want)
        *relus, concat, pooling = (node.layer for node in nodes)
        assert isinstance(concat, Concat) and isinstance(pooling, Pooling)
        self.concat, self.pooling = concat, pooling
        self.with_relu = bool(relus)
        # Of the top, that of one bottom; or all bottoms side by side.
        self._part = Blob(self.xp, (), channels_last=True, dtype=nodes[-1].tops[0].dtype)
        self._by_parts = True
        self._joined: tuple[int, ...] = ()  # the shape of all bottoms side by side
        dtype = pooling.memory.dtype
        self._memories = [Blob(self.xp, (), channels_last=True, dtype=dtype) for _ in nodes[-2].bottoms]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self._by_parts = _parts_alike(self.concat, self.pooling, bottom)
        self._joined = (bottom[0].shape[0], top[0].shape[1], *bottom[0].shape[2:])
        for blob, memory in zip(bottom, self._memories, strict=True):
            memory.reshape(*self._shape_of_part(blob, top[0]))

    def own_memory(self) -> list[Storage]:
        return [self._part.data_storage]

    def own_bytes(self) -> int:
        shapes = [memory.shape for memory in self._memories] if self._by_parts else [self._joined]
        return max(map(math.prod, shapes)) * self._part.dtype.itemsize

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self._memories, *(top if self.with_relu else [])]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        engine, windows, whole = self.engine, self.pooling.windows, top[0].data
        if self._by_parts:
            for x, memory, place in zip(
                bottom, self._memories, consecutive_slices(self.concat.sizes(bottom)), strict=True
            ):
                y = self._values_of_part(memory.shape)
                engine.max_pool_forward(x.data, y, memory.data, windows)
                engine.copy(y, whole[:, place])
        else:
            joined = self._values_of_part(self._joined)
            engine.concat([x.data for x in bottom], joined, 1)
            engine.max_pool_forward(joined, whole, self.pooling.memory.data, windows)
        if self.with_relu:
            engine.relu_of_maxima(whole)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not any(propagate_down):
            return
        engine, windows, whole = self.engine, self.pooling.windows, top[0].diff
        if self.with_relu:
            engine.relu_backward(top[0].data, whole, whole, 0)
        if not self._by_parts:
            joined = self._values_of_part(self._joined)
            engine.max_pool_backward(whole, self.pooling.memory.data, joined, windows)
            gradients = [x.diff if down else None for x, down in zip(bottom, propagate_down, strict=True)]
            engine.split(joined, gradients, self.concat.sizes(bottom), 1)
            return
        parts = zip(bottom, self._memories, consecutive_slices(self.concat.sizes(bottom)), propagate_down, strict=True)
        for x, memory, place, down in parts:
            if not down:
                continue
            dy = self._values_of_part(memory.shape)
            engine.copy(whole[:, place], dy)
            engine.max_pool_backward(dy, memory.data, x.diff, windows)

    def _shape_of_part(self, bottom: Blob, top: Blob) -> tuple[int, ...]:
        return bottom.shape[0], bottom.shape[1], *top.shape[2:]

    def _values_of_part(self, shape: tuple[int, ...]) -> Array:
        """Memory that all bottoms share in turn, and so mostly lies in a cache."""
        self._part.reshape(*shape)
        return self._part.data


def pooled_before_concat(nodes: list[Node], want: Want) -> list[Node]:
    """These nodes of a program that trains, with a PooledConcat for each Concat that only a pooling with a stride
    reads."""
    if want.visible is None or not want.gradients:
        return nodes
    for concat in nodes:
        if not isinstance(concat.layer, Concat):
            continue
        readers = _touching(nodes, concat.tops[0].data_storage)
        pooling = readers[1] if len(readers) == 2 else concat
        if _fits(concat, pooling):
            nodes = _changed(nodes, [*_relus(nodes, concat, pooling), concat, pooling], want)
    return renumbered(nodes)


def _changed(nodes: list[Node], replaced: list[Node], want: Want) -> list[Node]:
    """With a PooledConcat of these nodes where the Concat is, or without the ReLUs in it where backward of another
    layer would see what they have not done."""
    *relus, concat, pooling = replaced
    place = nodes.index(concat)
    before, behind = ([node for node in part if node not in replaced] for part in (nodes[:place], nodes[place:]))
    node = node_in_place_of(PooledConcat(replaced, want), replaced, concat, pooling)
    if relus and changes_what_backward_sees(node, replaced, [*before, node, pooling], behind):
        return _changed(nodes, [concat, pooling], want)
    return [*before, node, *behind]


def _fits(concat: Node, pooling: Node) -> bool:
    """Whether max pooling makes much fewer values of the channels of this Concat, of which it alone knows."""
    layer = pooling.layer
    if not isinstance(layer, Pooling) or len(pooling.tops) != 1 or layer.method != MAX:
        return False
    if not isinstance(concat.layer, Concat) or concat.layer.axis != 1 or any(concat.layer.loss_weights):
        return False
    if not concat.needs_backward == pooling.needs_backward == pooling.bottom_need_backward[0]:
        return False
    if min(layer.windows.stride) == 1 and not layer.param.pooling_param.global_pooling:
        return False
    return _parts_alike(concat.layer, layer, concat.bottoms)


def _parts_alike(concat: Concat, pooling: Pooling, bottoms: list[Blob]) -> bool:
    return pooling.engine.pools_parts_alike(bottoms[0].shape[0], concat.sizes(bottoms), pooling.windows)


def _relus(nodes: list[Node], concat: Node, pooling: Node) -> list[Node]:
    """Those in place that make the bottoms, if all bottoms come from such, whose work may be done behind the pooling:
    nobody but what comes before it touches what it overwrites."""
    layer, found = pooling.layer, []
    assert isinstance(layer, Pooling)
    for blob in concat.bottoms if layer.fills_windows else []:
        relu, last = _touching(nodes, blob.data_storage)[-2:]
        if last is not concat or not relu.in_place or not is_plain_relu(relu.layer):
            return []
        if any(other is not blob and other.data_storage is blob.data_storage for node in nodes for other in node.blobs):
            return []
        found.append(relu)
    return found


def _touching(nodes: list[Node], data: Storage) -> list[Node]:
    """The nodes that read or write these values, in their order."""
    return [node for node in nodes if any(blob.data_storage is data for blob in node.blobs)]
