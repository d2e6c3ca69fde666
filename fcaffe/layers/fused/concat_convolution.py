"""Concat and the 1x1 convolution that alone reads it."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.concat import Concat, consecutive_slices
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.fused.convolution_relu import ConvolutionReLU
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want

FEWEST = 16  # channels of a bottom whose gradient has the same bits alone as in the whole Concat


class ConcatConvolution(FusedLayer):
    """top = convolution(bottoms side by side), or with a ReLU the larger of that and 0.

    Backward computes the gradient of each bottom from the weights of its channels, so the gradient of the whole Concat
    is not materialised.
    """

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        concat, convolution = nodes[0].layer, nodes[1].layer
        assert isinstance(concat, Concat) and isinstance(convolution, Convolution)
        self.concat, self.convolution = concat, convolution
        self.inner = ConvolutionReLU(nodes[1:], want) if len(nodes) > 2 else convolution
        self.whole = nodes[0].tops[0]

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        if len(chain) < 2 or not chain[0].layer.engine.splits_products or not want.gradients:
            return 0
        concat, convolution = chain[0].layer, chain[1].layer
        if not isinstance(concat, Concat) or concat.axis != 1 or type(convolution) is not Convolution:
            return 0
        if not (convolution.axis == convolution.group == len(chain[1].bottoms) == 1):
            return 0
        below_threshold = any(blob.shape[1] < FEWEST for blob in chain[0].bottoms)
        if below_threshold or not convolution.windows.is_pointwise() or not chain[0].needs_backward:
            return 0
        return 3 if len(chain) > 2 and is_plain_relu(chain[2].layer) else 2

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.concat.forward(bottom, [self.whole])
        self.inner.forward([self.whole], top)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*{self.whole, *self.inner.saved([self.whole], top)}]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.inner.backward(top, [False], [self.whole])
        weights = self.convolution.blobs[0].data
        for blob, down, part in zip(bottom, propagate_down, consecutive_slices(self.concat.sizes(bottom)), strict=True):
            if down:
                own = self.xp.ascontiguousarray(weights[:, part])
                self.engine.convolution_backward_data(
                    top[0].diff, own, blob.diff, self.convolution.windows, self.convolution.group
                )
