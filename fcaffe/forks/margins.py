"""Margins of cosines, which a Normalize layer and an InnerProduct with `normalize: true` compute, before a softmax."""

from __future__ import annotations

import math
from typing import Any

from fcaffe.layers.labels import check_label_count, read_classes
from fcaffe.net import Array, Blob, Layer, Traits, placements, register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


@register("LabelSpecificAdd")
@register("LabelSpecificMargin")
@register("CosinAddm")
@register("CombinedMargin")
class Margin(Layer):
    """top = scores x (N, C, ...), in which those of the labels, the second bottom, become cos(m1 a + m2) - m3.

    a is the angle of the cosine x. CombinedMargin has all three. CosinAddm (ArcFace, Deng et al., 2019) has m2 = m, and
    where a + m > pi the scores become x - m sin(m). LabelSpecificMargin has m2 = margin_base degrees.
    LabelSpecificAdd (AM-Softmax, Wang et al., 2018) has m3 = -bias, where x > -bias. The last two leave scores as they
    are in TEST.
    """

    traits = Traits(bottoms=2, tops=1, labels=(1,), in_place=False, reads="bottoms")
    rule = placements.by_sample

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, both = self.param.label_specific_margin_param, self.param.combined_margin_param
        add = self.param.label_specific_add_param
        self.fork = forks.WINDOWS if self.type.startswith("Label") else forks.ARCFACE
        if add.HasField("bias_base") or p.auto_tune or p.type == p.SOFT or (p.margin_base and p.gamma):
            raise self.error("bias_base, auto_tune and type: SOFT are not supported, and gamma (default 1) must be 0")
        degrees = min(p.margin_base, p.margin_max if p.HasField("margin_max") else math.inf)
        self.m1, self.m2, self.m3 = {
            "CombinedMargin": (both.m1, both.m2, both.m3),
            "CosinAddm": (1, self.param.cosin_add_m_param.m, 0),
            "LabelSpecificAdd": (1, 0, -add.bias),
            "LabelSpecificMargin": (1, math.radians(degrees), 0),
        }[self.type]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        check_label_count(self, bottom, 1)
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        labels, value, _ = self._changed(bottom)
        top[0].data[...] = bottom[0].data
        self.xp.put_along_axis(top[0].data, labels, value, 1)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        labels, _, slope = self._changed(bottom)
        dx = bottom[0].diff
        dx[...] = top[0].diff
        self.xp.put_along_axis(dx, labels, self.xp.take_along_axis(dx, labels, 1) * slope, 1)

    def _changed(self, bottom: list[Blob]) -> tuple[Array, Array, Any]:
        """The labels, what becomes of their scores, and its derivative by them."""
        xp, f32 = self.xp, self.xp.float32
        labels, _, wrong = read_classes(self, bottom, 1, None)
        x = xp.take_along_axis(bottom[0].data, labels, 1)
        value, slope = x, 1
        if self.type == "LabelSpecificAdd":
            value = xp.where(x > f32(self.m3), x - f32(self.m3), x) if self.phase == pb.TRAIN else x
        elif self.type != "LabelSpecificMargin" or self.phase == pb.TRAIN:
            angle = f32(self.m1) * xp.arccos(xp.clip(x, -1, 1)) + f32(self.m2)
            value = xp.cos(angle) - f32(self.m3)
            slope = f32(self.m1) * xp.sin(angle) / xp.sqrt(xp.maximum(1 - x * x, f32(1e-12)))
        if self.type == "CosinAddm":
            beyond = x <= math.cos(math.pi - self.m2)
            value = xp.where(beyond, x - f32(self.m2 * math.sin(self.m2)), value)
            slope = xp.where(beyond | (abs(x) >= 1), 1, slope)
        return labels, xp.where(wrong, f32("nan"), value), slope
