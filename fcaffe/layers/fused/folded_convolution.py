"""Convolution with what stands behind it in a net for inference: normalisations, a sum with another blob, ReLU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from fcaffe.engines.affine import Affine, identity, normalization, scaling
from fcaffe.engines.convolution import Folded
from fcaffe.engines.windows import Windows
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.scale import Bias, Broadcasting, Scale
from fcaffe.net import Array, Blob, Layer
from fcaffe.net.node import Node
from fcaffe.net.rewrite import FusedLayer


class FoldedConvolution(FusedLayer):
    """top = convolution(bottom[0]) with folded weights, plus bottom[1] if there is one, and, with a ReLU, not below 0.

    Folded into the weights are BatchNorms by their running statistics, Scales and Biases. Where weights are not fixed,
    and would have to be folded in each pass, the layers work one by one, in the top.
    """

    traits = replace(FusedLayer.traits, by_sample=True)

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        convolution, behind = nodes[0].layer, [node.layer for node in nodes[1:]]
        assert isinstance(convolution, Convolution)
        self.convolution = convolution
        self.affine = [layer for layer in behind if _is_affine(layer)]
        self.adds = any(isinstance(layer, Eltwise) for layer in behind)
        self.with_relu = bool(behind) and is_plain_relu(behind[-1])
        self.folded = Folded(self._sources, self._fold)
        self._stride: tuple[int, ...] | None = None  # if it is another than the convolution's own

    @classmethod
    def match(cls, chain: Sequence[Node]) -> int:
        first = chain[0].layer
        return cls.length(chain) if first.context.inference and first.engine.folds_weights else 0

    @classmethod
    def length(cls, chain: Sequence[Node]) -> int:
        """How many nodes, from the first on, are a convolution and what may stand behind it; 0 for less than two."""
        first = chain[0].layer
        if type(first) is not Convolution or first.axis != 1 or len(chain[0].bottoms) != 1:
            return 0
        count = 1
        while count < len(chain) and _is_affine(chain[count].layer) and len(chain[count].bottoms) == 1:
            count += 1
        if count < len(chain) and _adds(chain, count):
            count += 1
        if count > 1 and count < len(chain) and is_plain_relu(chain[count].layer):
            count += 1
        return count if count > 1 else 0

    @property
    def windows(self) -> Windows:
        own = self.convolution.windows
        return own if self._stride is None else replace(own, stride=self._stride)

    def may_take(self, stride: tuple[int, ...]) -> bool:
        """Whether it may compute only what readers with this stride want."""
        return True

    def may_leave(self) -> bool:
        """Whether the bottom may have only the places that are wanted."""
        return True

    def take_stride(self, stride: tuple[int, ...], split: Node | None) -> None:
        """From now on compute only what readers with this stride want, who have read the top by way of `split`."""
        self._stride = tuple(a * b for a, b in zip(self.windows.stride, stride, strict=True))
        if split is not None:
            self.nodes += (split,)  # whose tops follow the shapes of the graph, for those who read them there

    def leave_stride(self) -> None:
        """From now on the bottom has but the places that are wanted."""
        self._stride = (1,) * len(self.windows.stride)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if self._stride is not None:
            channels = self.convolution.blobs[0].shape[0]
            top[0].reshape(bottom[0].shape[0], channels, *self.windows.convolved(bottom[0].shape[2:]))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        plus = bottom[1].data if self.adds else None
        if self.at_once(x, y, plus):
            return
        convolution = self.convolution
        weights, bias = convolution.blobs[0].data, convolution.bias()
        self.engine.convolution_forward(x, weights, bias, y, self.windows, convolution.group)
        for layer in self.affine:
            layer.forward(top, top)
        if plus is not None:
            self.engine.add_to(plus, y, self.with_relu)
        elif self.with_relu:
            self.engine.relu_forward(y, y, 0)

    def at_once(self, x: Array, y: Array, plus: Array | None) -> bool:
        """Let the engine do it; False if it cannot now."""
        group = self.convolution.group
        return self.engine.folded_convolution(x, self.folded, y, self.windows, group, self.with_relu, plus)

    def _sources(self) -> list[Array]:
        return [blob.data for layer in (self.convolution, *self.affine) for blob in layer.blobs]

    def _fold(self) -> tuple[Array, Array]:
        weights = self.convolution.blobs[0].data
        start = identity(weights.shape[0])
        whole = functools.reduce(Affine.then, map(_affine_of, self.affine), start)
        return whole.of_weights(weights, self.convolution.bias())


def _is_affine(layer: Layer) -> bool:
    """Whether it is an affine function of each channel, by parameters alone; if it has one bottom."""
    if isinstance(layer, BatchNorm):
        return layer.use_global_stats
    return isinstance(layer, Broadcasting) and bool(layer.blobs) and layer.axis == 1 and len(layer.blobs[0].shape) == 1


def _adds(chain: Sequence[Node], index: int) -> bool:
    """Whether the node is the sum of what comes from the one before it and of a blob that outlives the chain."""
    node, layer = chain[index], chain[index].layer
    if not isinstance(layer, Eltwise) or not layer.adds_two:
        return False
    inside = {blob for before in chain[:index] for blob in before.tops}
    return len(set(node.bottoms) - inside) == 1


def _affine_of(layer: Layer) -> Affine:
    arrays = [blob.data for blob in layer.blobs]
    if isinstance(layer, BatchNorm):
        return normalization(arrays, layer.eps)
    if isinstance(layer, Bias):
        return Affine(identity(arrays[0].size).scale, arrays[0])
    assert isinstance(layer, Scale)
    return scaling(arrays[0], arrays[1] if len(arrays) > 1 else None)
