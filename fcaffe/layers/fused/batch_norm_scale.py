"""BatchNorm, Scale and possibly ReLU, and the end of a residual block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.engines.normalization import Normalizer
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import BatchNorm, with_channels
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.scale import Scale
from fcaffe.layers.split import Split
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.run.rewrite import FusedLayer, Want, is_layer


class BatchNormScale(FusedLayer):
    """top = scale * (bottom - mean) / sqrt(variance + eps) + shift, or with a ReLU the larger of that and 0.

    The BatchNorm has a scale and a shift of its own, or a Scale with a bias follows it.
    """

    traits = replace(FusedLayer.traits, reads="bottoms", overwrites_gradient=True)
    begins_with = BatchNorm

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        assert isinstance(nodes[0].layer, BatchNorm)
        self.norm = nodes[0].layer
        self.affine_blobs = self.norm.affine_blobs or nodes[1].layer.blobs
        self.with_relu = any(is_plain_relu(node.layer) for node in nodes[1:3])  # nodes[3]: that of a sum

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        norm, count = chain[0].layer, 1
        assert isinstance(norm, BatchNorm)
        if (want.gradients and norm.use_global_stats) or len(chain[0].tops) > 1:
            return 0
        if not norm.affine_blobs:
            count = 2
            if len(chain) < 2 or not is_layer(chain[1].layer, Scale) or not chain[1].layer.is_per_channel:
                return 0
        elif want.gradients and len(norm.learned) < 2:
            return 0
        if len(chain) > count and is_plain_relu(chain[count].layer):
            count += 1
        overwrites = chain[0].bottoms[0].data_storage is chain[count - 1].tops[0].data_storage
        return 0 if count < 2 or (overwrites and want.gradients) else count

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.norm.take_moments(bottom[0])
        self.engine.batch_norm_apply(with_channels(bottom[0].data), with_channels(top[0].data), self.normalizer())

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.send_down(with_channels(top[0].diff), propagate_down[0], bottom[0])

    def send_down(self, dy: Array, wanted: bool, bottom: Blob) -> None:
        """Compute the gradients of scale, shift and, if `wanted`, the bottom."""
        dx = with_channels(bottom.diff if wanted else self.xp.empty_like(bottom.data))
        x, gradients = with_channels(bottom.data), list(self.xp.empty((2, self.norm.channels), self.xp.float32))
        self.engine.batch_norm_train_backward(x, dy, dx, self.normalizer(), gradients, self.norm.whole)
        for blob, gradient in zip(self.affine_blobs, gradients, strict=True):
            blob.diff[...] += gradient.reshape(blob.shape)

    def normalizer(self) -> Normalizer:
        scale, shift = (blob.data.reshape(-1) for blob in self.affine_blobs)
        return self.norm.normalizer._replace(scale=scale, shift=shift, relu=self.with_relu)


class BatchNormResidual(BatchNormScale):
    """All tops = max(normalised and scaled bottom[0] + bottom[1], 0): BatchNorm, Scale, a sum, ReLU, possibly a Split.

    Of two tops backward adds up the gradients.
    """

    traits = replace(BatchNormScale.traits, overwrites_gradient=False)

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        if len(chain) < 4 or is_plain_relu(chain[1].layer) or BatchNormScale.match(chain[:2], want) != 2:
            return 0
        addition, relu = chain[2:4]
        if not (is_layer(addition.layer, Eltwise) and addition.layer.adds_two and is_plain_relu(relu.layer)):
            return 0
        if want.gradients and not all(addition.bottom_need_backward):
            return 0
        return 5 if len(chain) > 4 and is_layer(chain[4].layer, Split) and len(chain[4].tops) == 2 else 4

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.norm.take_moments(bottom[0])
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
