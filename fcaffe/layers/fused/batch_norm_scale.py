"""BatchNorm, Scale and possibly ReLU."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.engines.normalization import Normalizer
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import BatchNorm, gradients_to_add, with_channels
from fcaffe.layers.scale import Scale
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want


class NormalizesAndScales(FusedLayer):
    """Base of fused layers that begin with a BatchNorm and a Scale with a bias, or a BatchNorm that has its own."""

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[0].layer, BatchNorm)
        self.norm = nodes[0].layer
        self.affine_blobs = self.norm.affine_blobs or nodes[1].layer.blobs

    @classmethod
    def begins(cls, chain: Sequence[Node], want: Want) -> int:
        """The number of layers that normalise and scale at the beginning of the chain; 0 if they cannot be fused."""
        norm = chain[0].layer
        if not isinstance(norm, BatchNorm) or (want.gradients and norm.use_global_stats) or len(chain[0].tops) > 1:
            return 0
        if norm.affine_blobs:
            return int(not want.gradients or len(norm.learned) == 2)
        return 2 if len(chain) > 1 and isinstance(chain[1].layer, Scale) and chain[1].layer.is_per_channel else 0

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.norm.take_moments(bottom[0])
        self.forward_again(bottom, top)
        self.norm.add_to_statistics()

    def normalizer(self, relu: bool = False) -> Normalizer:
        scale, shift = (blob.data.reshape(-1) for blob in self.affine_blobs)
        return self.norm.normalizer._replace(scale=scale, shift=shift, relu=relu)

    def gradient_of(self, bottom: Blob, wanted: bool) -> Array:
        """The array for the gradient of the bottom: a temporary one if only scale and bias learn."""
        return with_channels(bottom.diff if wanted else self.xp.empty_like(bottom.data))


class BatchNormScale(NormalizesAndScales):
    """top = scale * (bottom - mean) / sqrt(variance + eps) + shift, or with a ReLU the larger of that and 0."""

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        self.with_relu = is_plain_relu(nodes[-1].layer)

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        count = cls.begins(chain, want)
        if count and len(chain) > count and is_plain_relu(chain[count].layer):
            count += 1
        overwrites = count and chain[0].bottoms[0] is chain[count - 1].tops[0]
        return 0 if count < 2 or (overwrites and want.gradients) else count

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        norm, x, y = self.norm, with_channels(bottom[0].data), with_channels(top[0].data)
        if norm.use_global_stats:
            norm.statistics.read(norm.mean, norm.variance)
            self.engine.batch_norm_apply(x, y, self.normalizer(self.with_relu))
        else:
            self.engine.batch_norm_train(x, y, self.normalizer(self.with_relu), norm.memory.data)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [bottom[0], self.norm.memory]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        norm, x = self.norm, with_channels(bottom[0].data)
        dx, dy = self.gradient_of(bottom[0], propagate_down[0]), with_channels(top[0].diff)
        with gradients_to_add(self.affine_blobs, self.affine_blobs) as gradients:
            numbers = self.normalizer(self.with_relu), gradients, norm.memory.data, norm.whole
            self.engine.batch_norm_train_backward(x, dy, dx, *numbers)
