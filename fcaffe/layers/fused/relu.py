"""A convolution fused with the ReLU behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.engines.formulas import Formula
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.convolution import Convolution
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.run.rewrite import FusedLayer, Touching, Want, overwrites, saves

IS_POSITIVE = Formula("x > 0")


class ConvolutionReLU(FusedLayer):
    """top = max(convolution(bottom), 0), which engines compute as they store the outputs.

    `signs` has one byte for each value of the top: whether it is positive. Backward reads it instead of the top if no
    other layer's backward reads the top, whose memory is then free after forward.
    """

    traits = replace(FusedLayer.traits, reads_before_writing=True)
    begins_with = Convolution
    signs: Blob | None = None

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        assert isinstance(nodes[0].layer, Convolution)
        self.convolution = nodes[0].layer

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        return 2 if len(chain) > 1 and is_plain_relu(chain[1].layer) else 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if self.signs is not None:
            self.signs.reshape(*top[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.convolution.forward(bottom, top, relu=True)
        if self.signs is not None:
            self.engine.pointwise(IS_POSITIVE, {"x": top[0].data}, self.signs.data)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self.convolution.saved(bottom, top), self.signs or top[0]]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.inner.reshape(*top[0].shape)
        self.inner.share_diff(top[0])
        if self.signs is None:
            self.engine.relu_backward(top[0].data, top[0].diff, self.inner.diff, 0)
        else:
            self.engine.multiply(top[0].diff, self.signs.data, self.inner.diff)
        self.convolution.backward([self.inner], propagate_down, bottom)


def with_signs(nodes: list[Node], want: Want) -> list[Node]:
    """Let convolutions with ReLU save `signs` of float32 tops, on CPUs, where nothing needs these after forward."""
    touching = Touching(nodes)
    for node in nodes:
        layer = node.layer
        if not (isinstance(layer, ConvolutionReLU) and node.needs_backward) or layer.engine.asynchronous:
            continue
        top, storage = node.tops[0], node.tops[0].data_storage
        if top.dtype != "float32":
            continue
        others = [nodes[position] for position in touching.positions[storage] if nodes[position] is not node]
        if want.hides(storage) and not any(saves(other, storage) or overwrites(other, storage) for other in others):
            layer.signs = Blob(layer.xp, top.shape, storage.channels_last, "uint8")
    return nodes
