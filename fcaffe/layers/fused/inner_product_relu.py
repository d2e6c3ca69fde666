"""Inner product and ReLU, on engines that apply it together with the bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.inner_product import InnerProduct
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want


class InnerProductReLU(FusedLayer):
    """top = max(inner product(bottom), 0)."""

    traits = replace(FusedLayer.traits, reads_before_writing=True)
    keeps_blobs = True

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[0].layer, InnerProduct)
        self.product = nodes[0].layer

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        product = chain[0].layer
        if not isinstance(product, InnerProduct) or not product.engine.fuses_relu_backward:
            return 0
        fits = len(chain) > 1 and len(product.blobs) > 1 and product.axis == 1 and is_plain_relu(chain[1].layer)
        return 2 if fits else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = top[0].data
        self.product.multiply(bottom[0], y, None)
        self.engine.add_bias(y, self.product.blobs[1].data, relu=True)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*self.product.saved(bottom, top), *top]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy = top[0].diff
        dbias, add = self.product.blobs[1].diff_to_add() if self.product.learns_bias else (None, False)
        self.engine.relu_bias_backward(top[0].data, dy, dy, dbias, add)
        self.product.backward_weights(bottom[0], dy)
        if propagate_down[0]:
            self.product.backward_bottom(dy, bottom[0])
