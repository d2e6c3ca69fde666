"""Layers that learn features of faces: CenterLoss, MarginInnerProduct, TripletLoss, and margins of cosines."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.layers.c_order import copy_values, rows_of
from fcaffe.layers.labels import Integers, check_label_count, check_sample_labels, read_classes, read_indices
from fcaffe.layers.loss import LossLayer
from fcaffe.net import Array, Blob, Layer, Traits, placements, register
from fcaffe.net.layer import Held
from fcaffe.net.placements import REPLICATE, Placements, common, first_axis
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


class OfClasses(Layer):
    """Base: reads features (N, K), flattened from `axis` on, and labels, and has a row of K values for each class."""

    owner: str  # of the rows, in messages

    def add_rows(self, bottom: list[Blob], p: Any, filler: Any) -> None:
        """Append the parameter (num_output, K)."""
        if not p.num_output:
            raise self.error("num_output is missing: the number of classes")
        inputs = math.prod(bottom[0].shape[bottom[0].canonical_axis(p.axis) :])
        self.add_blob(p.num_output, inputs, filler=filler)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        check_sample_labels(self, bottom)
        shape, inputs = bottom[0].shape, self.blobs[0].shape[1]
        if bottom[0].count != shape[0] * inputs:
            raise self.error(f"has {self.owner} of {inputs} values, but its bottom has the shape {shape}")

    def labels(self, bottom: list[Blob]) -> Integers:
        """(N,), each a row of the parameter. See `read_indices`."""
        labels = read_indices(self, bottom, 1, self.blobs[0].shape[0], self.owner)
        return Integers(labels.values.reshape(-1), None, labels.wrong.reshape(-1))


@register("CenterLoss")
class CenterLoss(OfClasses, LossLayer):
    """top = sum of |x - center of x's class|^2 / (2 N) (Wen, Zhang, Li and Qiao, 2016).

    Bottoms: features x (N, K) and labels. The blob (num_output, K) has the centers. The gradient of a center is the sum
    of center - x over its n samples, divided by n + 1, whatever the loss weight. Counts only if `loss_weight` is given.
    """

    fork = forks.FACE
    owner = "centers"
    counts_by_default = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.center_loss_param
        self.add_rows(bottom, p, p.center_filler)
        LossLayer.setup(self, bottom, top)
        self.workers.run_shards_in_step()
        self.traits = replace(self.traits, needs_host=self.workers.size > 1)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        LossLayer.reshape(self, bottom, top)

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        labels = self.labels(bottom)
        difference = rows_of(bottom[0].data) - self.blobs[0].data[labels.values]
        self.xp.copyto(difference, self.xp.nan, where=labels.wrong[:, None])
        return difference * difference / 2, difference

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [bottom[1], *self.gradients]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        xp, centers = self.xp, self.blobs[0]
        if self.param_propagate_down[0]:
            labels = self.labels(bottom).values
            sums, counts = xp.zeros(centers.shape, "float32"), xp.zeros((centers.shape[0], 1), "float32")
            self.engine.add_rows(-rows_of(self.gradients[0].data), labels, sums)
            self.engine.add_rows(xp.ones((labels.size, 1), "float32"), labels, counts)
            if self.workers.size > 1:
                counts = self.workers.sum_array(counts)
            everyones = 1 if self.is_split else self.context.workers.size  # whose gradients add up
            centers.diff[...] += sums / ((counts + 1) * everyones)
        super().backward(top, propagate_down, bottom)


# cos(m a) as a polynomial of cos(a), for m from 1 on.
POLYNOMIALS = [1, 0], [2, 0, -1], [4, 0, -3, 0], [8, 0, -8, 0, 1]


@register("MarginInnerProduct")
class MarginInnerProduct(OfClasses):
    """Scores |x| cos(angle between x and the weights), lower for the sample's own class by a margin.

    (SphereFace: Liu, Wen, Yu, Li, Raj and Song, 2017.) Bottoms: features x (N, K) and labels. Tops: scores
    (N, num_output), and lambda (1,). Each pass, in TEST too, scales the rows of the weights (num_output, K) to length
    1. It increases a count too, which starts at `iteration`, and lambda is
    max(base * (1 + gamma * count)^-power, lambda_min). The score of the own class is
    (|x| f(angle) + lambda |x| cos(angle)) / (1 + lambda), where f(a) = (-1)^k cos(m a) - 2 k for the k with
    k pi <= m a <= (k + 1) pi. For the types SINGLE to QUADRUPLE m is 1 to 4.

    As in the fork, the gradient of the weights ignores the margin, and that of x has the margin's direction with
    coefficients of length 1.
    """

    fork = forks.SPHEREFACE
    traits = Traits(bottoms=2, tops=2, reshapes_by_shape=True, held=Held.ALIKE, labels=(1,))
    owner = "weights"

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return True

    def rule(self, bottom: list[Blob]) -> Placements:
        placement = common(self, bottom, first_axis)
        return [placement] * 2, [placement, REPLICATE]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.margin_inner_product_param
        self.add_rows(bottom, p, p.weight_filler)
        self.count = Blob(self.xp)  # on the device, where recorded work adds to it
        self.count.data[...] = p.iteration

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        top[0].reshape(bottom[0].shape[0], self.blobs[0].shape[0])
        top[1].reshape(1)

    def state_blobs(self) -> dict[str, Blob]:
        return {"count": self.count}

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.once(self._begin_pass, read_now=True)
        xp, p = self.xp, self.param.margin_inner_product_param
        base = 1 + xp.float32(p.gamma) * self.count.data
        top[1].data[...] = xp.maximum(xp.float32(p.base) * base ** xp.float32(-p.power), xp.float32(p.lambda_min))
        scores, mix = top[0].data, top[1].data
        scores[...] = self.engine.matmul(rows_of(bottom[0].data), self.blobs[0].data, transpose_b=True)
        labels = self.labels(bottom)
        samples = xp.arange(labels.values.size)
        _, norm, cosine, margin, _ = self._margin(bottom, labels.values)
        score = norm * (margin + mix * cosine) / (1 + mix)
        scores[samples, labels.values] = xp.where(labels.wrong, xp.nan, score)

    def _begin_pass(self) -> None:
        weights = self.blobs[0].data
        weights /= self.xp.sqrt((weights * weights).sum(axis=1, keepdims=True))
        self.count.data[...] += 1

    def _margin(self, bottom: list[Blob], labels: Array) -> tuple[Array, ...]:
        """Of each sample: the weights of its class, (N, K), and |x|, cosine, f and its derivative by that, (N,)."""
        xp, x, weights = self.xp, rows_of(bottom[0].data), self.blobs[0].data[labels]
        norm = xp.sqrt((x * x).sum(axis=1))
        cosine = (x * weights).sum(axis=1) / norm
        polynomial = POLYNOMIALS[self.param.margin_inner_product_param.type]
        m = len(polynomial) - 1
        turns = (cosine < xp.float32(math.cos(math.pi * j / m)) for j in range(1, m))
        k = sum(turns, xp.zeros(labels.shape, "float32"))
        sign = 1 - 2 * (k % 2)
        slope = sign * _value(np.polyder(polynomial), cosine)
        return weights, norm, cosine, sign * _value(polynomial, cosine) - 2 * k, slope

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [*bottom, top[1]]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        xp, x, dy = self.xp, rows_of(bottom[0].data), top[0].diff
        if self.param_propagate_down[0]:
            dweights, add = self.blobs[0].diff_to_add()
            self.engine.inner_product_backward_weights(x, dy, dweights, False, add)
        if propagate_down[0]:
            labels = self.labels(bottom).values
            weights, norm, cosine, margin, slope = self._margin(bottom, labels)
            along = (margin - cosine * slope) / norm  # the gradient of |x| f is slope * weights + along * x
            length = xp.sqrt(slope * slope + along * along)
            own = dy[xp.arange(labels.size), labels] / (1 + top[1].data)
            dx = self.engine.matmul(dy, self.blobs[0].data)
            dx += (own * (slope / length - 1))[:, None] * weights + (own * along / length)[:, None] * x
            copy_values(dx, bottom[0].diff)


def _value(polynomial: Any, x: Array) -> Array:
    """The value of a polynomial with these coefficients, the highest first."""
    return functools.reduce(lambda total, coefficient: total * x + float(coefficient), polynomial, 0 * x)


@register("TripletLoss")
class TripletLoss(LossLayer):
    """top = sum of w * max(0, margin + |a - p|^2 - |a - n|^2) / (2 N).

    Bottoms of one shape: anchors a, p of the same class, n of another, all of which can have a gradient. The weights w
    (N) of the samples, a fourth bottom, are 1 by default.
    """

    fork = forks.WINDOWS
    traits = replace(LossLayer.traits, bottoms=(3, 4), labels=(3,))
    learning = 3

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        samples = bottom[0].shape[0]
        if any(blob.shape != bottom[0].shape for blob in bottom[:3]) or any(b.count != samples for b in bottom[3:]):
            raise self.error(
                f"its bottoms must have the same shape, and weights one value a sample: {self.named_shapes(bottom)}"
            )

    def terms(self, bottom: list[Blob]) -> tuple[Array, ...]:
        a, p, n = (rows_of(blob.data) for blob in bottom[:3])
        near, far = a - p, a - n
        squares = (near * near).sum(axis=1) - (far * far).sum(axis=1)
        losses = self.xp.maximum(squares + self.xp.float32(self.param.triplet_loss_param.margin), 0)
        weights = bottom[3].data.reshape(-1) if len(bottom) > 3 else self.xp.ones(len(losses), "float32")
        slopes = ((losses > 0) * weights)[:, None]
        return losses * weights / 2, slopes * (near - far), slopes * -near, slopes * far


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
