"""ReLU and max pooling, in the opposite order."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import ReLU, is_plain_relu
from fcaffe.layers.pooling import Pooling
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want, is_layer


class PoolingReLU(FusedLayer):
    """top = max(max_pool(bottom), 0).

    The order of the maximum and the ReLU changes no bit of the results. It changes no bit of the gradients either: a
    positive maximum is the same value at the same position before and after the ReLU. The ReLU then works on a quarter
    of the values, and its input is not saved for backward.
    """

    begins_with = ReLU

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[1].layer, Pooling)
        self.pooling = nodes[1].layer

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        if len(chain) < 2 or not is_plain_relu(chain[0].layer) or not want.gradients:
            return 0  # for inference the layer before the ReLU applies it as it stores its outputs
        pooling = chain[1].layer
        return 2 if is_layer(pooling, Pooling) and pooling.finds_maxima and pooling.fills_windows else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.pooling.forward(bottom, top)
        self.engine.relu_of_maxima(top[0].data)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self.pooling.saved(bottom, top), *top]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self.pooling.backward([self.before_relu(top[0])], propagate_down, bottom)
