"""The end of a residual block: BatchNorm, Scale, a sum with another blob, ReLU, and possibly a Split."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import gradients_to_add, with_channels
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.fused.batch_norm_scale import NormalizesAndScales
from fcaffe.layers.split import Split
from fcaffe.net import Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import Want


class BatchNormResidual(NormalizesAndScales):
    """All tops = max(normalised and scaled bottom[0] + bottom[1], 0). Of two tops backward adds up the gradients."""

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        first = cls.begins(chain, want)
        if not first or len(chain) < first + 2:
            return 0
        addition, relu = chain[first], chain[first + 1]
        if not (isinstance(addition.layer, Eltwise) and addition.layer.adds_two and is_plain_relu(relu.layer)):
            return 0
        count = first + 2
        if len(chain) > count and isinstance(chain[count].layer, Split) and len(chain[count].tops) == 2:
            count += 1
        outer = {blob for node in (chain[0], addition) for blob in node.bottoms} - {chain[first - 1].tops[0]}
        overwrites = any(blob in outer for node in chain[first:count] for blob in node.tops)
        return 0 if overwrites or (want.gradients and not all(addition.bottom_need_backward)) else count

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        norm, x, other, y = self.norm, *(with_channels(blob.data) for blob in (*bottom, top[0]))
        if norm.use_global_stats:
            norm.statistics.read(norm.mean, norm.variance)
        self.engine.batch_norm_add_relu(x, other, y, self.normalizer())

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [bottom[0], top[0], self.norm.memory]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        norm, x, y = self.norm, with_channels(bottom[0].data), with_channels(top[0].data)
        dx, dother = self.gradient_of(bottom[0], propagate_down[0]), with_channels(bottom[1].diff)
        dys = [with_channels(blob.diff) for blob in top]
        if len(dys) > 1:
            self.engine.weighted_sum(dys, [1.0] * len(dys), dother)
        self.engine.relu_backward(y, dother if len(dys) > 1 else dys[0], dother, 0)
        with gradients_to_add(self.affine_blobs, self.affine_blobs) as gradients:
            numbers = self.normalizer(), gradients, norm.memory.data, norm.whole
            self.engine.batch_norm_train_backward(x, dother, dx, *numbers)
