"""Dropout: in training each value is kept with probability 1 - ratio (Srivastava et al., 2014)."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.activations import Activation
from fcaffe.net import Array, Blob, Context, Half, register
from fcaffe.net.placements import Placements, Shard, elementwise, with_noise
from fcaffe.proto import caffe_pb2 as pb


@register("Dropout")
class Dropout(Activation):
    """TRAIN: top = x / (1 - ratio) where kept, else 0. TEST: top = x, since the expectation is the same.

    With Fast R-CNN's `scale_train: false` TRAIN does not divide, and TEST multiplies by 1 - ratio. With SegNet's
    `sample_weights_test: true` TEST does what TRAIN does.
    """

    traits = replace(Activation.traits, half=Half.SAME, reads="neither")

    def rule(self, bottom: list[Blob]) -> Placements:
        drops = self.phase == pb.TRAIN or self.param.dropout_param.sample_weights_test
        return (with_noise if drops and not has_part_of_rows(bottom[0]) else elementwise)(self, bottom)

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
        self.has_part_of_rows = has_part_of_rows(bottom[0])
        waits = self.drops and (self.context.noise == "caffe" or not self.is_split or self.has_part_of_rows)
        self.traits = replace(self.traits, needs_host=waits)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.mask.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.drops:
            ratio = self.param.dropout_param.dropout_ratio
            noise = PartOfRows(self.context, bottom[0]) if self.has_part_of_rows else self.context
            with self.context.noise_of_batch(not self.is_split or self.has_part_of_rows):
                self.engine.dropout_forward(x, y, self.mask.data, noise, self.key, ratio, self.scale)
        else:
            self._scaled(x, y)

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.drops:  # with the same mask, by the arithmetic of backward
            self.engine.dropout_backward(bottom[0].data, self.mask.data, top[0].data, self.scale)
        else:
            self.forward(bottom, top)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.drops:
            self.engine.dropout_backward(dy, self.mask.data, dx, self.scale)
        else:
            self._scaled(dy, dx)

    def _scaled(self, source: Array, target: Array) -> None:
        if self.scale != 1:
            with self.engine.in_float32([source], [target]) as (source, target):
                self.xp.multiply(source, self.xp.float32(self.scale), out=target)
        elif target is not source:
            target[...] = source


def has_part_of_rows(blob: Blob) -> bool:
    """Whether each worker has a part of every row, so that it must draw whole rows."""
    return isinstance(blob.placement, Shard) and blob.placement.axis > 0


class PartOfRows:
    """Noise for a part of each sample of a batch: draws whole samples, and takes the part."""

    noise = "part"

    def __init__(self, context: Context, blob: Blob) -> None:
        self._context, self._blob = context, blob

    def keep_mask(self, layer: str, shape: tuple[int, ...], ratio: float) -> Array:
        context, blob = self._context, self._blob
        return context.part_of(context.keep_mask(layer, context.whole_shape(blob), ratio), blob.placement)
