"""Convolution with what stands behind it, in one go, but by the arithmetic of the layers, so that no bit changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fcaffe.engines.convolution import Steps
from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.fused.folded_convolution import FoldedConvolution
from fcaffe.layers.scale import Bias
from fcaffe.net import Array, Layer
from fcaffe.net.node import Node


class StepwiseConvolution(FoldedConvolution):
    """top = convolution(bottom[0]), then what BatchNorms, Scales and Biases do with each channel, step by step, then
    the sum with bottom[1] if there is one, and ReLU; for scripts, which are to read the bits of the layers."""

    exact = True
    only_exact = True
    traits = replace(FoldedConvolution.traits, by_sample=False)  # other bits, perhaps, in pieces

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.steps = Steps(tuple(kind for layer in self.affine for kind in _kinds_of(layer)), self._sources, self._make)
        self._apart = (1,) * len(self.windows.stride)  # how far the places of the bottom lie apart

    @classmethod
    def match(cls, chain: Sequence[Node]) -> int:
        count = cls.length(chain) if chain[0].layer.engine.convolves_in_steps else 0
        return 0 if count == 2 and chain[1].layer.type == "ReLU" else count  # which is done without a trial

    def may_take(self, stride: tuple[int, ...]) -> bool:
        wanted = tuple(a * b for a, b in zip(self.windows.stride, stride, strict=True))
        return self._keeps_bits(self._apart, wanted)

    def may_leave(self) -> bool:
        return self._keeps_bits(self._apart_without_stride(), (1,) * len(self._apart))

    def leave_stride(self) -> None:
        self._apart = self._apart_without_stride()
        super().leave_stride()

    def at_once(self, x: Array, y: Array, plus: Array | None) -> bool:
        convolution = self.convolution
        weights, bias, group = convolution.blobs[0].data, convolution.bias(), convolution.group
        windows, relu = self.windows, self.with_relu
        return self.engine.convolution_in_steps(x, weights, bias, y, windows, group, self.steps, relu, plus)

    def _apart_without_stride(self) -> tuple[int, ...]:
        return tuple(a * b for a, b in zip(self._apart, self.windows.stride, strict=True))

    def _keeps_bits(self, apart: tuple[int, ...], stride: tuple[int, ...]) -> bool:
        """Whether it makes what it makes of the whole bottom of places so far apart, and with this stride."""
        convolution, shape = self.convolution, self.nodes[0].bottoms[0].shape
        weights, biased = convolution.blobs[0].data, len(convolution.blobs) > 1
        windows = convolution.windows
        return self.engine.convolves_few(shape, weights, biased, windows, convolution.group, apart, stride)

    def _make(self) -> tuple[Array, ...]:
        return tuple(number for layer in self.affine for number in _numbers_of(layer))


def _kinds_of(layer: Layer) -> tuple[str, ...]:
    if isinstance(layer, BatchNorm):
        return "subtract", "divide"
    return ("add",) if isinstance(layer, Bias) else ("multiply", "add")[: len(layer.blobs)]


def _numbers_of(layer: Layer) -> Sequence[Array]:
    if isinstance(layer, BatchNorm):
        return layer.running_numbers()
    return [blob.data for blob in layer.blobs]
