"""The sum of two blobs and ReLU, as at the end of a residual block."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.eltwise import Eltwise
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want


class SumReLU(FusedLayer):
    """top = max(bottom[0] + bottom[1], 0)."""

    keeps_blobs = True

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        first = chain[0].layer
        fits = len(chain) > 1 and isinstance(first, Eltwise) and first.adds_two and is_plain_relu(chain[1].layer)
        return 2 if fits and not set(chain[0].bottoms) & {chain[0].tops[0], chain[1].tops[0]} else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.add_relu(bottom[0].data, bottom[1].data, top[0].data)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return top

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self.want.visible is None:  # the gradient of the sum is read too
            for node in reversed(self.nodes):
                node.backward()
            return
        engine, y, dy = self.engine, top[0].data, top[0].diff
        wanted = [blob.diff for blob, down in zip(bottom, propagate_down, strict=True) if down]
        if wanted:
            engine.relu_backward(y, dy, wanted[0], 0)
        if len(wanted) == 2:
            engine.copy(*wanted)
