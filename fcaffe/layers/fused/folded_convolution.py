"""Convolution fused with the layers behind it at inference: normalisations, a sum with another blob, ReLU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from fcaffe.engines.affine import Affine, identity, scaling
from fcaffe.layers.activations import is_plain_relu
from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.scale import Bias, Broadcasting, Scale
from fcaffe.net import Array, Blob, Layer
from fcaffe.net.node import Node
from fcaffe.net.run.rewrite import FusedLayer, Want, is_layer


class FoldedConvolution(FusedLayer):
    """top = convolution(bottom[0]) with folded weights, plus bottom[1] if there is one; with a ReLU, at least 0.

    BatchNorms with running statistics, Scales and Biases are folded into the weights. If these would have to be folded
    in each pass, the layers run one by one, in the top. A `stride` other than the convolution's
    own computes only the positions that are read (see `fcaffe.layers.fused.subsampling`).
    """

    begins_with = Convolution

    def __init__(self, nodes: Sequence[Node], stride: tuple[int, ...] | None = None) -> None:
        super().__init__(nodes)
        convolution, behind = nodes[0].layer, [node.layer for node in nodes[1:]]
        assert isinstance(convolution, Convolution)
        self.convolution = convolution
        self.affine = [layer for layer in behind if is_affine(layer)]
        self.adds = any(is_layer(layer, Eltwise) for layer in behind)
        self.with_relu = any(map(is_plain_relu, behind))
        self.windows = replace(convolution.windows, stride=stride or convolution.windows.stride)

    @classmethod
    def match(cls, chain: Sequence[Node], want: Want) -> int:
        first = chain[0].layer
        assert isinstance(first, Convolution)
        if want.gradients or first.engine.asynchronous or first.axis != 1 or len(chain[0].bottoms) != 1:
            return 0
        count = 1
        while count < len(chain) and is_affine(chain[count].layer) and len(chain[count].bottoms) == 1:
            count += 1
        if count < len(chain) and _adds(chain, count):
            count += 1
        if count > 1 and count < len(chain) and is_plain_relu(chain[count].layer):
            count += 1
        return count if count > 1 else 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for node in self.nodes:
            node.reshape()
        channels = self.convolution.blobs[0].shape[0]
        top[0].reshape(bottom[0].shape[0], channels, *self.windows.convolved(bottom[0].shape[2:]))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        plus = bottom[1].data if self.adds else None
        convolution, engine = self.convolution, self.engine
        weights, group, windows = convolution.blobs[0].data, convolution.group, self.windows
        if engine.folded_convolution(x, weights, self._fold, y, windows, group, self.with_relu, plus):
            return
        engine.convolution_forward(x, weights, convolution.bias(), y, windows, group)
        for layer in self.affine:
            layer.forward(top, top)
        if plus is not None:
            engine.add_to(plus, y, self.with_relu)
        elif self.with_relu:
            engine.relu_forward(y, y, 0)

    def _fold(self) -> tuple[Array, Array]:
        weights = self.convolution.blobs[0].data
        start = identity(weights.shape[0])
        whole = functools.reduce(Affine.then, map(affine_of, self.affine), start)
        return whole.of_weights(weights, self.convolution.bias())


def is_affine(layer: Layer) -> bool:
    """Whether a layer with one bottom is an affine function of each channel that depends on parameters only."""
    if is_layer(layer, BatchNorm):
        return layer.use_global_stats
    if not is_layer(layer, Scale) and not is_layer(layer, Bias):
        return False
    assert isinstance(layer, Broadcasting)
    return bool(layer.blobs) and layer.axis == 1 and len(layer.blobs[0].shape) == 1


def _adds(chain: Sequence[Node], index: int) -> bool:
    """Whether the node adds a blob from outside the chain to the output of the node before it."""
    node, layer = chain[index], chain[index].layer
    if not is_layer(layer, Eltwise) or not layer.adds_two:
        return False
    inside = {blob for before in chain[:index] for blob in before.tops}
    return len(set(node.bottoms) - inside) == 1


def affine_of(layer: Layer) -> Affine:
    if isinstance(layer, BatchNorm):
        return layer.folded
    arrays = [blob.data for blob in layer.blobs]
    if isinstance(layer, Bias):
        return Affine(identity(arrays[0].size).scale, arrays[0])
    return scaling(arrays[0], arrays[1] if len(arrays) > 1 else None)
