"""Subsampling: positions of a blob that no layer reads are not computed, at inference.

In a residual net of Caffe's kind convolutions of 1x1 have the strides, so they read a quarter of what the block before
them has computed. The rule moves the stride up, from the readers to the layer whose top they read:

    before   a: 3x3 -> b: 1x1, + x, ReLU -> c: 1x1 with stride 2, d: 1x1 with stride 2
    after    a: 3x3 with stride 2 -> b: 1x1, + every second position of x, ReLU -> c: 1x1, d: 1x1
"""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.fused.folded_convolution import FoldedConvolution
from fcaffe.layers.split import Split
from fcaffe.net import Blob, Layer, Traits
from fcaffe.net.context import Context
from fcaffe.net.node import Node
from fcaffe.net.run.rewrite import Touching, Want, is_layer
from fcaffe.proto import caffe_pb2 as pb


class Subsample(Layer):
    """top = every n-th position of the bottom, from the first on, by the stride of each spatial axis."""

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True)

    def __init__(self, name: str, context: Context, stride: tuple[int, ...]) -> None:
        super().__init__(pb.LayerParameter(name=name, type=type(self).__name__, phase=pb.TEST), context)
        self.stride = stride

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*_subsampled_shape(bottom[0], self.stride))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        positions = slice(None), slice(None), *(slice(None, None, step) for step in self.stride)
        self.engine.copy(bottom[0].data[positions], top[0].data)


def without_unread_positions(nodes: list[Node], want: Want) -> list[Node]:
    """Move strides up, from the last node on, so that each moves as far as it can."""
    if not any(isinstance(node.layer, FoldedConvolution) for node in nodes):
        return nodes
    touching = Touching(nodes)
    made = [[node] for node in nodes]  # what becomes of each node, which comes last
    for index in reversed(range(len(nodes))):
        if made[index]:
            _move_stride_up(index, touching, made, want)
    return [node for some in made for node in some]


def _move_stride_up(index: int, touching: Touching, made: list[list[Node]], want: Want) -> None:
    """Let the node compute only what its readers read, if they are convolutions of single positions."""
    node = made[index][-1]
    layer = node.layer
    if not isinstance(layer, FoldedConvolution) or not want.hides(node.tops[0].data_storage):
        return
    top = node.tops[0]
    positions = [position for position in touching.positions[top.data_storage] if position > index]
    if not positions:
        return
    split = touching.nodes[positions[0]] if is_layer(touching.nodes[positions[0]].layer, Split) else None
    read = [top] if split is None else split.tops
    readers = positions if split is None else positions[1:]
    strides = {_stride_of_points(made[position], read) for position in readers}
    stride = strides.pop() if len(strides) == 1 else None
    if stride is None:
        return
    some = _subsampled(top, stride)
    followed = layer.nodes if split is None else (*layer.nodes, split)  # whose tops have the shapes of the graph
    own = tuple(a * b for a, b in zip(layer.windows.stride, stride, strict=True))
    bottoms, added = node.bottoms, []
    if layer.adds:
        name, blob = f"{node.name}/subsampled", node.bottoms[1]
        subsample = Subsample(name, layer.context, stride)
        added.append(Node(node.index, subsample, [blob], [_subsampled(blob, stride)], [False]))
        bottoms = [node.bottoms[0], *added[0].tops]
    made[index] = [*added, replace(node, layer=FoldedConvolution(followed, own), bottoms=bottoms, tops=[some])]
    if split is not None:
        made[positions[0]] = []
    for position in readers:  # they read every position of `some`
        reader = made[position][-1]
        assert isinstance(reader.layer, FoldedConvolution)
        dense = FoldedConvolution(reader.layer.nodes, (1,) * len(stride))
        made[position][-1] = replace(reader, layer=dense, bottoms=[some, *reader.bottoms[1:]])


def _stride_of_points(made: list[Node], blobs: list[Blob]) -> tuple[int, ...] | None:
    """The stride with which a node reads single positions of one of the blobs. None if it reads them otherwise.

    `made` has the node, behind those that subsample its operands.
    """
    *added, reader = made
    if not isinstance(reader.layer, FoldedConvolution) or reader.bottoms[0] not in blobs:
        return None
    others = [*reader.bottoms[1:], *reader.tops, *(blob for other in added for blob in other.bottoms)]
    if any(blob in blobs for blob in others):
        return None
    windows = reader.layer.windows
    is_point = windows.size == 1 and not any(windows.pad)
    return windows.stride if is_point and max(windows.stride, default=1) > 1 else None


def _subsampled(blob: Blob, stride: tuple[int, ...]) -> Blob:
    return Blob(blob.xp, _subsampled_shape(blob, stride), channels_last=True, dtype=blob.dtype)


def _subsampled_shape(blob: Blob, stride: tuple[int, ...]) -> tuple[int, ...]:
    return *blob.shape[:2], *((n - 1) // step + 1 for n, step in zip(blob.shape[2:], stride, strict=True))
