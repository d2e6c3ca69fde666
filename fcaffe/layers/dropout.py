"""Dropout: in training each value is kept with probability 1 - ratio (Srivastava et al., 2014)."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.activations import Activation
from fcaffe.net import Array, Blob, Half, register
from fcaffe.net.noise import Noise
from fcaffe.net.placements import Placements, elementwise, with_noise
from fcaffe.proto import caffe_pb2 as pb


@register("Dropout")
class Dropout(Activation):
    """TRAIN: top = x / (1 - ratio) where kept, else 0. TEST: top = x, since the expectation is the same.

    With Fast R-CNN's `scale_train: false` TRAIN does not divide, and TEST multiplies by 1 - ratio. With SegNet's
    `sample_weights_test: true` TEST does what TRAIN does.
    """

    traits = replace(Activation.traits, half=Half.SAME, reads="neither")

    def rule(self, bottom: list[Blob]) -> Placements:
        p = self.param.dropout_param
        return (with_noise() if self.phase == pb.TRAIN or p.sample_weights_test else elementwise)(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.dropout_param
        ratio = p.dropout_ratio
        if not 0 <= ratio <= 1:
            raise self.error(f"dropout_ratio must be from 0 to 1, not {ratio:g}")
        self.drops = self.phase == pb.TRAIN or p.sample_weights_test
        if p.scale_train:
            self.scale = (1 / (1 - ratio) if ratio < 1 else math.inf) if self.drops else 1.0
        else:
            self.scale = 1.0 if self.drops else 1 - ratio
        self.mask = Blob(self.xp, (), channels_last=True, dtype=self.engine.mask_dtype)
        if self.drops:
            self.noise = Noise(self, bottom[0])
            self.traits = replace(self.traits, needs_host=self.noise.by_host)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.mask.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.noise and self.context.may_change():
            self.engine.draw_mask(self.mask.data, self.noise, self.param.dropout_param.dropout_ratio, self.scale)
        self._masked(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self._masked(top[0].diff, bottom[0].diff)

    def _masked(self, source: Array, target: Array) -> None:
        if self.noise:
            self.engine.apply_mask(source, self.mask.data, target, self.scale)
        elif self.scale != 1:
            with self.engine.in_float32([source], [target]) as (source, target):
                self.xp.multiply(source, self.xp.float32(self.scale), out=target)
        elif target is not source:
            target[...] = source
