"""The end of a residual block: BatchNorm, Scale, a sum with another blob, ReLU, and possibly a Split."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import with_channels
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.fused.batch_norm_scale import BatchNormScale
from fcaffe.layers.split import Split
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import Want, is_layer


class BatchNormResidual(BatchNormScale):
    """All tops = max(normalised and scaled bottom[0] + bottom[1], 0). Of two tops backward adds up the gradients."""

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        self.with_relu = False  # of the sum, not of what is normalised

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        if len(chain) < 4 or BatchNormScale.match(chain[:2], want) != 2:
            return 0
        addition, relu = chain[2:4]
        if not (is_layer(addition.layer, Eltwise) and addition.layer.adds_two and is_plain_relu(relu.layer)):
            return 0
        if want.gradients and not all(addition.bottom_need_backward):
            return 0
        return 5 if len(chain) > 4 and is_layer(chain[4].layer, Split) and len(chain[4].tops) == 2 else 4

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, other, y = (with_channels(blob.data) for blob in (*bottom, top[0]))
        self.engine.batch_norm_add_relu(x, other, y, self.normalizer())

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [bottom[0], top[0]]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dys, slope = [with_channels(blob.diff) for blob in top], with_channels(bottom[1].diff)
        if len(dys) > 1:
            self.engine.weighted_sum(dys, [1.0] * len(dys), slope)
        self.engine.relu_backward(with_channels(top[0].data), slope if len(dys) > 1 else dys[0], slope, 0)
        self.send_down(slope, propagate_down[0], bottom[0])
