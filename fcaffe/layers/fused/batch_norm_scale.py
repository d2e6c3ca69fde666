"""BatchNorm, Scale and possibly ReLU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from fcaffe.engines.normalization import Normalizer
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import BatchNorm, with_channels
from fcaffe.layers.scale import Scale
from fcaffe.net import Array, Blob
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer, Want


class NormalizesAndScales(FusedLayer):
    """Base of fused layers that begin with a BatchNorm and a Scale with a bias."""

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        assert isinstance(nodes[0].layer, BatchNorm)
        self.norm = nodes[0].layer
        self.scale = nodes[1].layer

    @classmethod
    def begins(cls, chain: Sequence[Node], want: Want) -> bool:
        """Whether the chain begins with these two layers, and they can be fused."""
        if len(chain) < 2:
            return False
        norm, scale = chain[0].layer, chain[1].layer
        if not (isinstance(norm, BatchNorm) and isinstance(scale, Scale) and scale.is_per_channel):
            return False
        return not want.gradients or not norm.use_global_stats

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.norm.take_moments(bottom[0])
        self.forward_again(bottom, top)
        self.norm.add_to_statistics()

    def normalizer(self, relu: bool = False) -> Normalizer:
        scale, shift = self.scale.blobs
        return self.norm.normalizer()._replace(scale=scale.data, shift=shift.data, relu=relu)

    def gradient_of(self, bottom: Blob, wanted: bool) -> Array:
        """The array for the gradient of the bottom: a temporary one if only scale and bias learn."""
        return with_channels(bottom.diff if wanted else self.xp.empty_like(bottom.data))

    @contextlib.contextmanager
    def gradients(self) -> Iterator[tuple[Array, ...]]:
        """Yields arrays for the gradients of scale and bias, which are added to the blobs' gradients afterwards."""
        diffs = [blob.diff_to_add() for blob in self.scale.blobs]
        written = tuple(self.xp.empty_like(diff) if add else diff for diff, add in diffs)
        yield written
        for (diff, add), gradient in zip(diffs, written, strict=True):
            if add:
                diff += gradient


class BatchNormScale(NormalizesAndScales):
    """top = scale * (bottom - mean) / sqrt(variance + eps) + shift, or with a ReLU the larger of that and 0."""

    def __init__(self, nodes: Sequence[Node], want: Want) -> None:
        super().__init__(nodes, want)
        self.with_relu = len(nodes) == 3

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        if not cls.begins(chain, want):
            return 0
        count = 3 if len(chain) > 2 and is_plain_relu(chain[2].layer) else 2
        overwrites = chain[0].bottoms[0] is chain[count - 1].tops[0]
        return 0 if overwrites and want.gradients else count

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
        with self.gradients() as gradients:
            numbers = self.normalizer(self.with_relu), gradients, norm.memory.data, norm.whole
            self.engine.batch_norm_train_backward(x, dy, dx, *numbers)
