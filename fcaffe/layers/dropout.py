"""Dropout: in training each value is kept with probability 1 - ratio (Srivastava et al., 2014)."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.activations import Activation
from fcaffe.net import Blob, Half, register
from fcaffe.proto import caffe_pb2 as pb


@register("Dropout")
class Dropout(Activation):
    """TRAIN: top = x / (1 - ratio) where kept, else 0. TEST: top = x, since the expectation is the same."""

    traits = replace(Activation.traits, half=Half.SAME, keeps_signs=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        ratio = self.param.dropout_param.dropout_ratio
        if not 0 <= ratio <= 1:
            raise self.error(f"dropout_ratio must be from 0 to 1, not {ratio:g}")
        self.scale = 1 / (1 - ratio) if ratio < 1 else math.inf
        self.mask = Blob(self.xp, (), channels_last=True, dtype=self.engine.mask_dtype)
        draws_one_by_one = self.phase == pb.TRAIN and self.context.noise == "caffe"
        self.traits = replace(self.traits, needs_host=draws_one_by_one, by_sample=self.phase != pb.TRAIN)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.mask.reshape(*bottom[0].shape)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return []

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.phase == pb.TRAIN:
            ratio = self.param.dropout_param.dropout_ratio
            self.engine.dropout_forward(x, y, self.mask.data, self.context, self.name, ratio, self.scale)
        elif top[0] is not bottom[0]:
            y[...] = x

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.phase == pb.TRAIN:  # with the same mask, by the arithmetic of backward
            self.engine.dropout_backward(bottom[0].data, self.mask.data, top[0].data, self.scale)
        else:
            self.forward(bottom, top)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.phase == pb.TRAIN:
            self.engine.dropout_backward(dy, self.mask.data, dx, self.scale)
        elif top[0] is not bottom[0]:
            dx[...] = dy
