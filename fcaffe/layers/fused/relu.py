"""A convolution fused with the ReLU behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.convolution import Convolution
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.run.rewrite import FusedLayer, Want


class ConvolutionReLU(FusedLayer):
    """top = max(convolution(bottom), 0), which engines compute as they store the outputs."""

    traits = replace(FusedLayer.traits, reads_before_writing=True)
    begins_with = Convolution

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        assert isinstance(nodes[0].layer, Convolution)
        self.convolution = nodes[0].layer

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        return 2 if len(chain) > 1 and is_plain_relu(chain[1].layer) else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.convolution.forward(bottom, top, relu=True)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self.convolution.saved(bottom, top), *top]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.inner.reshape(*top[0].shape)
        self.inner.share_diff(top[0])
        self.engine.relu_backward(top[0].data, top[0].diff, self.inner.diff, 0)
        self.convolution.backward([self.inner], propagate_down, bottom)
