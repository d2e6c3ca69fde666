"""Softmax over one axis."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.activations import Activation
from fcaffe.net import Blob, Half, placements, register


@register("Softmax")
class Softmax(Activation):
    """top = exp(x) / sum of exp(x) along `axis`; the maximum is subtracted first. In place too."""

    traits = replace(Activation.traits, half=Half.FIRST, reads="tops")
    ignores_propagate_down = True
    rule = placements.between(lambda layer, x: [x.canonical_axis(layer.param.softmax_param.axis)])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.axis = bottom[0].canonical_axis(self.param.softmax_param.axis)
        super().reshape(bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.engine.softmax_forward(bottom[0].data, top[0].data, self.axis)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.engine.softmax_backward(top[0].data, top[0].diff, bottom[0].diff, self.axis)
