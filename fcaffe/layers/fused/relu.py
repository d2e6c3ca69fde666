"""ReLUs behind a convolution and before a max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.layers.activations import ReLU, is_plain_relu
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.pooling import Pooling
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want, is_layer


class ConvolutionReLU(FusedLayer):
    """top = max(convolution(bottom), 0), which engines compute as they store the outputs."""

    traits = replace(FusedLayer.traits, reads_before_writing=True)
    begins_with = Convolution

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[0].layer, Convolution)
        self.convolution = nodes[0].layer

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        return 2 if len(chain) > 1 and is_plain_relu(chain[1].layer) else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        convolution = self.convolution
        y = convolution.images(top[0].data)
        convolution.forward_images(convolution.images(bottom[0].data), y, relu=True)
        convolution.put_back(y, top[0].data)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self.convolution.saved(bottom, top), *top]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        convolution = self.convolution
        dy = convolution.images(self.before_relu(top[0]).diff)
        convolution.backward_parameters(convolution.images(bottom[0].data), dy)
        if propagate_down[0]:
            convolution.backward_bottom(dy, bottom[0])


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
        self.pooling.backward([self.before_relu(top[0])], propagate_down, bottom)
