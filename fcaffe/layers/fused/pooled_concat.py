"""Concat and max pooling in the opposite order; ReLUs of the bottoms run last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcaffe.engines.elementwise import consecutive_slices
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.concat import Concat
from fcaffe.layers.pooling import Pooling
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want, changes_what_backward_sees, node_in_place_of
from fcaffe.net.storage import Storage


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
        whole = top[0].diff
        if self.with_relu:
            self.engine.relu_backward(top[0].data, whole, whole, 0)
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
    """In a training program, replace each Concat that only a pooling with a stride reads by a PooledConcat."""
    if want.visible is None or not want.gradients:
        return nodes
    for concat in nodes:
        readers = _touching(nodes, concat.tops[0].data_storage) if isinstance(concat.layer, Concat) else []
        if len(readers) == 2 and _fits(*readers):
            nodes = _changed(nodes, [*_relus(nodes, *readers), *readers], want)
    return nodes


def _changed(nodes: list[Node], replaced: list[Node], want: Want) -> list[Node]:
    """Replace these nodes by a PooledConcat. The ReLUs stay if backward of another layer reads their tops."""
    *relus, concat, pooling = replaced
    index = nodes.index(concat)
    before, behind = ([node for node in part if node not in replaced] for part in (nodes[:index], nodes[index:]))
    node = node_in_place_of(PooledConcat(replaced, want), replaced, concat, pooling)
    if relus and changes_what_backward_sees(node, replaced, [*before, node, pooling], behind):
        return _changed(nodes, [concat, pooling], want)
    return [*before, node, *behind]


def _fits(concat: Node, pooling: Node) -> bool:
    """Whether the pooling is a max pooling that reduces the size, and can come before the Concat."""
    layer = pooling.layer
    if not isinstance(layer, Pooling) or not layer.finds_maxima or min(layer.windows.stride) == 1:
        return False
    if not isinstance(concat.layer, Concat) or concat.layer.axis != 1 or any(concat.layer.loss_weights):
        return False
    if not concat.needs_backward == pooling.needs_backward == pooling.bottom_need_backward[0]:
        return False
    channels = concat.layer.sizes(concat.bottoms)
    return layer.engine.pools_parts_alike(concat.bottoms[0].shape[0], channels, layer.windows)


def _relus(nodes: list[Node], concat: Node, pooling: Node) -> list[Node]:
    """The in-place ReLUs that write the bottoms, if all bottoms have one and only the Concat reads its output."""
    layer, found = pooling.layer, []
    assert isinstance(layer, Pooling)
    for blob in concat.bottoms if layer.fills_windows else []:
        relu, last = _touching(nodes, blob.data_storage)[-2:]
        shares = any(b.data_storage is blob.data_storage and b is not blob for node in nodes for b in node.blobs)
        if last is not concat or shares or not relu.in_place or not is_plain_relu(relu.layer):
            return []
        found.append(relu)
    return found


def _touching(nodes: list[Node], data: Storage) -> list[Node]:
    """The nodes that read or write this storage, in order."""
    return [node for node in nodes if any(blob.data_storage is data for blob in node.blobs)]
