"""Blobs of which only every second place is read, in a net for inference: the other places are not computed.

A residual net of Caffe's kind takes its strides in convolutions of 1x1, which read a quarter of what the block before
them has computed. So the stride moves up, from the readers to what they read:

    before   a: 3x3 -> b: 1x1, + x, ReLU -> c: 1x1 with stride 2, d: 1x1 with stride 2
    after    a: 3x3 with stride 2 -> b: 1x1, + every second place of x, ReLU -> c: 1x1, d: 1x1
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fcaffe.engines.windows import Windows
from fcaffe.layers.fused.folded_convolution import FoldedConvolution
from fcaffe.net import Blob, Layer, Traits
from fcaffe.net.context import Context
from fcaffe.net.node import Node
from fcaffe.net.rewrite import renumbered
from fcaffe.net.storage import Storage
from fcaffe.proto import caffe_pb2 as pb


class Places(Layer):
    """top = every so many-th place of the bottom, from the first on, by the stride of each spatial axis."""

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True, repeatable=True, by_sample=True)

    def __init__(self, name: str, context: Context, stride: tuple[int, ...]) -> None:
        super().__init__(pb.LayerParameter(name=name, type=type(self).__name__, phase=pb.TEST), context)
        self.windows = _points(stride)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        top[0].reshape(*shape[:2], *self.windows.convolved(shape[2:]))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """In two parts: no image may seem to reach into the next one, as the last step from an odd last row would."""
        wanted = slice(None), slice(None), *(slice(None, None, step) for step in self.windows.stride)
        x, y = bottom[0].data, top[0].data
        whole = x.shape[2] // self.windows.stride[0]
        for part in slice(whole), slice(whole, None):
            if y[:, :, part].size:
                self.engine.copy(x[wanted][:, :, part], y[:, :, part])


def _points(stride: tuple[int, ...]) -> Windows:
    """Windows of one value each, so far apart."""
    axes = len(stride)
    return Windows((1,) * axes, stride, (0,) * axes, (1,) * axes)


def without_unread_places(nodes: list[Node], kept: Collection[Storage]) -> list[Node]:
    """These nodes of a program for inference, which are changed as above: from the last on, so that a stride moves up
    as far as it can. Of what is `kept` all places are wanted."""
    for node in reversed(nodes):
        if isinstance(node.layer, FoldedConvolution):
            nodes = _with_stride_of_readers(nodes, node.layer, kept)
    return nodes


def _with_stride_of_readers(nodes: list[Node], layer: FoldedConvolution, kept: Collection[Storage]) -> list[Node]:
    index = next(index for index, node in enumerate(nodes) if node.layer is layer)
    node, top = nodes[index], nodes[index].tops[0]
    readers = [other for other in nodes if other is not node and top in other.blobs]
    split = readers[0] if len(readers) == 1 and readers[0].layer.type == "Split" else None
    read = [top]
    if split is not None:
        read = split.tops
        readers = [other for other in nodes if any(blob in read for blob in other.bottoms)]
    strides = {_stride_of_points(reader, read) for reader in readers}
    stride = strides.pop() if len(strides) == 1 else None
    if stride is None or any(blob._data in kept for blob in (top, *read)) or not layer.may_take(stride):
        return nodes
    if not all(isinstance(reader.layer, FoldedConvolution) and reader.layer.may_leave() for reader in readers):
        return nodes
    if layer.exact and not all(node.is_steady for node in nodes[:index]):
        return nodes

    few = _few_of(top, _points(stride))
    added = []
    if layer.adds:
        added.append(_places(node, stride))
        node = replace(node, bottoms=[node.bottoms[0], *added[0].tops])
    layer.take_stride(stride, split)
    changed: dict[Layer, Node] = {layer: replace(node, tops=[few], versions=[])}
    for reader in readers:
        assert isinstance(reader.layer, FoldedConvolution)
        reader.layer.leave_stride()
        changed[reader.layer] = replace(reader, bottoms=[few, *reader.bottoms[1:]], versions=[])
    made = [changed.get(other.layer, other) for other in nodes if other is not split]
    return renumbered([*made[:index], *added, *made[index:]])


def _stride_of_points(reader: Node, blobs: list[Blob]) -> tuple[int, ...] | None:
    """With which stride it reads points of one of the blobs and nothing else of them; None if it does not."""
    layer = reader.layer
    if not isinstance(layer, FoldedConvolution) or reader.bottoms[0] not in blobs:
        return None
    if any(blob in blobs for blob in (*reader.bottoms[1:], *reader.tops)):
        return None
    windows = layer.windows
    are_points = windows.size == 1 and not any(windows.pad)
    return windows.stride if are_points and max(windows.stride, default=1) > 1 else None


def _places(node: Node, stride: tuple[int, ...]) -> Node:
    """What makes the few places of the blob that this node adds."""
    name, blob = f"{node.name}/places", node.bottoms[1]
    layer = Places(name, node.layer.context, stride)
    tops = [_few_of(blob, layer.windows)]
    return Node(node.index, layer, name, [blob], tops, node.bottom_ids[1:], node.bottom_ids[1:], [False])


def _few_of(blob: Blob, windows: Windows) -> Blob:
    shape = *blob.shape[:2], *windows.convolved(blob.shape[2:])
    return Blob(blob.xp, shape, channels_last=True, dtype=blob.dtype)
