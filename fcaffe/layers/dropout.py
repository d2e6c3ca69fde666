"""Dropout: in training each value is kept with probability 1 - ratio (Srivastava et al., 2014)."""

from __future__ import annotations

import math

from fcaffe.layers.activations import Activation
from fcaffe.net.blob import Blob
from fcaffe.net.layer import register
from fcaffe.proto import caffe_pb2 as pb


@register("Dropout")
class Dropout(Activation):
    """TRAIN: top = x / (1 - ratio) where kept, else 0. TEST: top = x, since the expectation is the same."""

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        ratio = self.param.dropout_param.dropout_ratio
        if not 0 <= ratio <= 1:
            raise self.error(f"dropout_ratio must be from 0 to 1, not {ratio:g}")
        self.scale = 1 / (1 - ratio) if ratio < 1 else math.inf
        self.mask = Blob(self.xp, (), channels_last=True)  # 0 or scale

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.mask.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.phase == pb.TRAIN:
            mask = self.mask.data
            kept = self.context.keep_mask(self.name, x.shape, self.param.dropout_param.dropout_ratio)
            self.xp.multiply(self.engine.from_numpy(kept), self.xp.float32(self.scale), out=mask)
            self.engine.multiply(x, mask, y)
        elif top[0] is not bottom[0]:
            y[...] = x

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.phase == pb.TRAIN:
            self.engine.multiply(dy, self.mask.data, dx)
        elif top[0] is not bottom[0]:
            dx[...] = dy
