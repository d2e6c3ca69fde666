"""Subsampling: positions of a blob that no layer reads are not computed, at inference.

In a residual net of Caffe's kind convolutions of 1x1 have the strides, so they read a quarter of what the block before
them has computed. The rule moves the stride up, from the readers to the layer whose top they read:

    before   a: 3x3 -> b: 1x1, + x, ReLU -> c: 1x1 with stride 2, d: 1x1 with stride 2
    after    a: 3x3 with stride 2 -> b: 1x1, + every second position of x, ReLU -> c: 1x1, d: 1x1
"""

from __future__ import annotations

from dataclasses import replace

from fcaffe.engines.windows import Windows
from fcaffe.layers.fused.folded_convolution import FoldedConvolution
from fcaffe.layers.split import Split
from fcaffe.net import Blob, Layer, Traits
from fcaffe.net.context import Context
from fcaffe.net.node import Node
from fcaffe.net.rewrite import Want, renumbered
from fcaffe.proto import caffe_pb2 as pb


class Subsample(Layer):
    """top = every n-th position of the bottom, from the first on, by the stride of each spatial axis."""

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True, repeatable=True, by_sample=True)

    def __init__(self, name: str, context: Context, stride: tuple[int, ...]) -> None:
        super().__init__(pb.LayerParameter(name=name, type=type(self).__name__, phase=pb.TEST), context)
        self.windows = _points(stride)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        top[0].reshape(*shape[:2], *self.windows.convolved(shape[2:]))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Copies in two parts: a step from an odd last row must not seem to reach into the next image."""
        positions = slice(None), slice(None), *(slice(None, None, step) for step in self.windows.stride)
        x, y = bottom[0].data, top[0].data
        whole = x.shape[2] // self.windows.stride[0]
        for part in slice(whole), slice(whole, None):
            if y[:, :, part].size:
                self.engine.copy(x[positions][:, :, part], y[:, :, part])


def without_unread_positions(nodes: list[Node], want: Want) -> list[Node]:
    """Move strides up, from the last node on, so that each moves as far as it can."""
    for node in reversed(nodes):
        if isinstance(node.layer, FoldedConvolution):
            nodes = _with_stride_of_readers(nodes, node.layer, want)
    return nodes


def _with_stride_of_readers(nodes: list[Node], layer: FoldedConvolution, want: Want) -> list[Node]:
    index = next(index for index, node in enumerate(nodes) if node.layer is layer)
    node, top = nodes[index], nodes[index].tops[0]
    readers = [other for other in nodes if other is not node and top in other.blobs]
    split = readers[0] if len(readers) == 1 and isinstance(readers[0].layer, Split) else None
    read = [top]
    if split is not None:
        read = split.tops
        readers = [other for other in nodes if any(blob in read for blob in other.bottoms)]
    strides = {_stride_of_points(reader, read) for reader in readers}
    stride = strides.pop() if len(strides) == 1 else None
    if stride is None or not all(map(want.hides, (top, *read))):
        return nodes

    some = _subsampled(top, stride)
    added = []
    if layer.adds:
        added.append(_subsample(node, stride))
        node = replace(node, bottoms=[node.bottoms[0], *added[0].tops])
    followed = layer.nodes if split is None else (*layer.nodes, split)  # whose tops have the shapes of the graph
    own = tuple(a * b for a, b in zip(layer.windows.stride, stride, strict=True))
    changed = {id(layer): replace(node, layer=FoldedConvolution(followed, want, own), tops=[some], versions=[])}
    for reader in readers:
        assert isinstance(reader.layer, FoldedConvolution)
        dense = FoldedConvolution(reader.layer.nodes, want, (1,) * len(stride))
        changed[id(reader.layer)] = replace(reader, layer=dense, bottoms=[some, *reader.bottoms[1:]], versions=[])
    made = [changed.get(id(other.layer), other) for other in nodes if other is not split]
    return renumbered([*made[:index], *added, *made[index:]])


def _stride_of_points(reader: Node, blobs: list[Blob]) -> tuple[int, ...] | None:
    """The stride with which the node reads single positions of one of the blobs. None if it reads them otherwise."""
    layer = reader.layer
    if not isinstance(layer, FoldedConvolution) or reader.bottoms[0] not in blobs:
        return None
    if any(blob in blobs for blob in (*reader.bottoms[1:], *reader.tops)):
        return None
    windows = layer.windows
    is_point = windows.size == 1 and not any(windows.pad)
    return windows.stride if is_point and max(windows.stride, default=1) > 1 else None


def _points(stride: tuple[int, ...]) -> Windows:
    """Windows of one position each."""
    axes = len(stride)
    return Windows((1,) * axes, stride, (0,) * axes, (1,) * axes)


def _subsample(node: Node, stride: tuple[int, ...]) -> Node:
    """The node that subsamples the blob that this node adds."""
    name, blob = f"{node.name}/subsampled", node.bottoms[1]
    layer = Subsample(name, node.layer.context, stride)
    return Node(node.index, layer, name, [blob], [_subsampled(blob, stride)], [False])


def _subsampled(blob: Blob, stride: tuple[int, ...]) -> Blob:
    shape = *blob.shape[:2], *_points(stride).convolved(blob.shape[2:])
    return Blob(blob.xp, shape, channels_last=True, dtype=blob.dtype)
