"""Batch normalisation by oneDNN's binary primitives, with sums whose error does not grow with the number of values.

oneDNN's own batch normalisation adds each channel's values one after the other in float32, so a mean over 10^5 values
loses three digits, and it rounds a product and a sum once. Here `fcaffe.engines.channels` computes all sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fcaffe.engines.channels import channel_products, is_channels_last, is_near
from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.engines.memory import Array
from fcaffe.engines.normalization import Normalizer, PlainNormalization, Whole
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.library import type_of
from fcaffe.engines.onednn.operation import SMALL
from fcaffe.engines.onednn.primitives import Layout
from fcaffe.engines.onednn.steps import Step, Steps

WIDTH = 512  # values of a row; shorter ones are slow
POSITIVE: Sequence[Step] = ((dnnl.LINEAR, FLT_MAX, 0), (dnnl.CLIP, 0, 1))  # 1 for positive values, 0 for others and NaN


class BatchNorm(Steps, PlainNormalization):
    """Computes on dense arrays, channels-last or in C order. Others, and very small ones, are left to array code."""

    def batch_norm_apply(self, x: Array, y: Array, norm: Normalizer) -> None:
        if not _is_taken(x):
            super().batch_norm_apply(x, y, norm)
            return
        with self.dense([], [y], like=x) as (out,):
            self.along_channels(x, out, _normalizing(norm), norm.relu)

    def batch_norm_add_relu(self, x: Array, other: Array, y: Array, norm: Normalizer) -> None:
        if not _is_taken(x):
            super().batch_norm_add_relu(x, other, y, norm)
            return
        with self.dense([other], [y], like=x) as (addend, out):
            self.along_channels(x, out, [*_normalizing(norm), (dnnl.ADD, addend)], relu=True)

    def batch_norm_train_backward(
        self, x: Array, dy: Array, dx: Array, norm: Normalizer, gradients: Sequence[Array], whole: Whole | None = None
    ) -> None:
        if not _is_taken(x):
            super().batch_norm_train_backward(x, dy, dx, norm, gradients, whole)
            return
        deviation = np.sqrt(norm.variance + np.float64(norm.eps))
        with self.dense([dy], [dx], like=x) as (slope, out):
            if norm.relu:
                self.along_channels(x, out, [*_normalizing(norm), *POSITIVE, (dnnl.MULTIPLY, slope)])
                slope = out
            sums = self._products(x, slope, norm.mean, norm.variance)
            sums[0] /= deviation
            if gradients:
                gradients[0][...], gradients[1][...] = sums
            count: float = x.size // x.shape[1]
            if whole is not None:
                count, sums = whole.values, whole.sum(sums)
            product, shift = sums / count
            steps = [(dnnl.SUBTRACT, norm.mean), (dnnl.MULTIPLY, -product / deviation), (dnnl.ADD, slope)]
            factor = 1 / deviation if norm.scale is None else norm.scale / deviation
            self.along_channels(x, out, [*steps, (dnnl.SUBTRACT, shift), (dnnl.MULTIPLY, factor)])

    def scale_channels(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        if not _is_taken(x):
            super().scale_channels(x, y, scale, shift)
            return
        with self.dense([], [y], like=x) as (out,):
            self.along_channels(x, out, [(dnnl.MULTIPLY, scale), (dnnl.ADD, shift)])

    def scale_channels_backward(
        self, x: Array, dy: Array, dx: Array, scale: Array, dscale: Array, dshift: Array
    ) -> None:
        if not _is_taken(x):
            super().scale_channels_backward(x, dy, dx, scale, dscale, dshift)
            return
        with self.dense([dy], [dx], like=x) as (slope, out):
            dscale[...], dshift[...] = self._products(x, slope, np.zeros_like(scale), np.ones_like(scale))
            self.along_channels(slope, out, [(dnnl.MULTIPLY, scale)])

    def _products(self, x: Array, dy: Array, mean: Array, variance: Array) -> Array:
        """For each channel the sums of (x - mean) * dy and of dy, (2, C) in float64."""
        shift = None if np.all(is_near(mean, variance)) else mean
        total, product = channel_products(x, dy, shift, self.for_each)
        return np.stack([product - mean * total if shift is None else product, total])

    def along_channels(self, x: Array, y: Array, steps: Sequence[Step], relu: bool = False) -> None:
        """y = x after these steps, then ReLU with `relu`. y is laid out like x.

        The array of a step is laid out like x, or has one value per channel, as that of the first step has.
        """
        channels, rows_at_once = x.shape[1], _side_by_side(x)
        images = 1 if is_channels_last(x) else x.shape[0]
        shape = images, channels * rows_at_once, x.size // (images * channels * rows_at_once), 1
        inner = (1, shape[1]) if is_channels_last(x) else (shape[2], 1)

        def layout(array: Array) -> Layout:
            if array.ndim == 1:
                return Layout(self.library, (1, array.size, 1, 1), dnnl.F32, (array.size, 1, 1, 1))
            return Layout(self.library, shape, type_of(array), (math.prod(shape[1:]), *inner, inner[1]))

        def repeated(step: Step) -> Step:
            if len(step) == 3 or step[1].ndim > 1:
                return step
            return step[0], np.tile(step[1].astype(np.float32, copy=False), rows_at_once)

        self.in_steps(x, y, list(map(repeated, steps)), relu, layout)


def _is_taken(x: Array) -> bool:
    return x.ndim > 2 and x.size >= SMALL and x.size > x.shape[1] and bool(x.flags.c_contiguous or is_channels_last(x))


def _normalizing(norm: Normalizer) -> list[Step]:
    """The steps of the function, but for the ReLU."""
    deviation = np.sqrt(norm.variance + np.float32(norm.eps))
    if norm.scale is None:
        return [(dnnl.SUBTRACT, norm.mean), (dnnl.DIVIDE, deviation)]
    return [(dnnl.SUBTRACT, norm.mean), (dnnl.MULTIPLY, norm.scale / deviation), (dnnl.ADD, norm.shift)]


def _side_by_side(x: Array) -> int:
    """How many rows of a channels-last array count as one. At least two are left."""
    rows_at_once = 1
    if is_channels_last(x):
        rows = x.size // x.shape[1]
        while rows_at_once * x.shape[1] < WIDTH and rows % (2 * rows_at_once) == 0 and rows > 2 * rows_at_once:
            rows_at_once *= 2
    return rows_at_once
