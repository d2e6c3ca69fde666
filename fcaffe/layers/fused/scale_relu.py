"""Scale and ReLU."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.scale import Scale
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want


class ScaleReLU(FusedLayer):
    """top = max(scale * bottom + shift, 0), per channel."""

    keeps_blobs = True

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[0].layer, Scale)
        self.scale = nodes[0].layer
        self.bottom_copy = self.scale.bottom_copy

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        scale = chain[0].layer
        fits = len(chain) > 1 and isinstance(scale, Scale) and scale.has_channels and is_plain_relu(chain[1].layer)
        return 2 if fits and len(chain[0].bottoms) == 1 else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, (scale, shift) = self.keep_bottom(bottom, top).data, self.scale.blobs
        self.engine.scale_channels(x, top[0].data, scale.data, shift.data, relu=True)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self.scale.saved(bottom, top), *top]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy = top[0].diff
        self.engine.relu_backward(top[0].data, dy, dy, 0)
        self.scale.backward(top, propagate_down, bottom)
