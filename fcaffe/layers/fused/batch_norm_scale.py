"""BatchNorm, Scale and possibly ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.engines.normalization import Normalizer
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import BatchNorm, gradients_to_add, with_channels
from fcaffe.layers.scale import Scale
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want, is_layer


class BatchNormScale(FusedLayer):
    """top = scale * (bottom - mean) / sqrt(variance + eps) + shift, or with a ReLU the larger of that and 0.

    The BatchNorm has a scale and a shift of its own, or a Scale with a bias follows it.
    """

    traits = replace(FusedLayer.traits, reads="bottoms")
    begins_with = BatchNorm

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[0].layer, BatchNorm)
        self.norm = nodes[0].layer
        self.affine_blobs = self.norm.affine_blobs or nodes[1].layer.blobs
        self.with_relu = is_plain_relu(nodes[-1].layer)

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
        self.forward_again(bottom, top)
        self.norm.add_to_statistics()

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.batch_norm_apply(with_channels(bottom[0].data), with_channels(top[0].data), self.normalizer())

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.send_down(with_channels(top[0].diff), propagate_down[0], bottom[0])

    def send_down(self, dy: Array, wanted: bool, bottom: Blob) -> None:
        """Compute the gradients of scale, shift and, if `wanted`, the bottom."""
        dx = with_channels(bottom.diff if wanted else self.xp.empty_like(bottom.data))
        with gradients_to_add(self.affine_blobs, self.affine_blobs) as gradients:
            normalizer = self.normalizer()
            self.engine.batch_norm_train_backward(
                with_channels(bottom.data), dy, dx, normalizer, gradients, self.norm.whole
            )

    def normalizer(self) -> Normalizer:
        if self.norm.use_global_stats:
            self.norm.statistics.read(self.norm.mean, self.norm.variance)
        scale, shift = (blob.data.reshape(-1) for blob in self.affine_blobs)
        return self.norm.normalizer._replace(scale=scale, shift=shift, relu=self.with_relu)
