"""Concat and max pooling in the opposite order; ReLUs of the bottoms run last."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.concat import Concat, consecutive_slices
from fcaffe.layers.pooling import MAX, Pooling
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want, changes_what_backward_sees, node_in_place_of, renumbered
from fcaffe.net.storage import Storage


class PooledConcat(FusedLayer):
    """top = concat(max_pool(bottom) for each bottom), or with ReLUs the larger of that and 0.

    Pooling treats each channel separately, so it may come before the Concat. The Concat then copies a quarter of the
    values, and its own top is not materialised. No bit changes. If all bottoms come from ReLUs, these run last, as in
    PoolingReLU.

    For shapes with which pooling the bottoms separately would change bits, the Concat and the pooling run one by one.
    """

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        """`nodes` are the ReLUs of all bottoms, or none, the Concat and the pooling."""
        super().__init__(nodes, want)
        *relus, concat, pooling = (node.layer for node in nodes)
        assert isinstance(concat, Concat) and isinstance(pooling, Pooling)
        self.concat, self.pooling = concat, pooling
        self.with_relu = bool(relus)
        self._by_parts = True
        self._part = Blob(self.xp, (), channels_last=True, dtype=nodes[-1].tops[0].dtype)  # the pooled bottoms in turn
        self._memories = [Blob(self.xp, (), channels_last=True) for _ in nodes[-2].bottoms]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self._by_parts = _parts_alike(self.concat, self.pooling, bottom)
        for blob, memory in zip(bottom, self._memories, strict=True):
            memory.reshape(*blob.shape[:2], *top[0].shape[2:])

    def own_memory(self) -> list[Storage]:
        return [self._part.data_storage]

    def own_bytes(self) -> int:
        return max(memory.count for memory in self._memories) * self._part.dtype.itemsize

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self._memories, *(top if self.with_relu else [])]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        whole = top[0].data
        for x, memory, part in self._parts(bottom):
            y = self._pooled(memory)
            self.engine.max_pool_forward(x.data, y, memory.data, self.pooling.windows)
            self.engine.copy(y, whole[:, part])
        if not self._by_parts:
            for node in self.nodes[-2:]:
                node.layer.forward(node.bottoms, node.tops)
        if self.with_relu:
            self.engine.relu_of_maxima(whole)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        whole = top[0].diff
        if self.with_relu:
            self.engine.relu_backward(top[0].data, whole, whole, 0)
        if not self._by_parts:
            for node in reversed(self.nodes[-2:]):
                node.backward()
        for (x, memory, part), down in zip(self._parts(bottom), propagate_down, strict=False):
            if down:
                dy = self._pooled(memory)
                self.engine.copy(whole[:, part], dy)
                self.engine.max_pool_backward(dy, memory.data, x.diff, self.pooling.windows)

    def _parts(self, bottom: list[Blob]) -> list[tuple[Blob, Blob, slice]]:
        """Each bottom with its indices of maxima and its slice of the top, unless the layers run one by one."""
        slices = consecutive_slices(self.concat.sizes(bottom))
        return list(zip(bottom, self._memories, slices, strict=True)) if self._by_parts else []

    def _pooled(self, memory: Blob) -> Array:
        """The workspace for one pooled bottom, whose indices are in `memory`. It mostly stays in the cache."""
        self._part.reshape(*memory.shape)
        return self._part.data


def pooled_before_concat(nodes: list[Node], want: Want) -> list[Node]:
    """In a training program, replace each Concat that only a pooling with a stride reads by a PooledConcat."""
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
    """The in-place ReLUs that write the bottoms, if all bottoms have one and only the Concat reads its output."""
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
    """The nodes that read or write this storage, in order."""
    return [node for node in nodes if any(blob.data_storage is data for blob in node.blobs)]
