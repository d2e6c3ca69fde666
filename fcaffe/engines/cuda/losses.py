"""SoftmaxWithLoss by kernels of our own, without the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.cuda.operands import is_channels_last
from fcaffe.engines.losses import PlainLosses

Array = Any

WARP = 32  # threads for a position


class Losses(PlainLosses):
    """Scores, probabilities and gradients in C order, or channels-last with the classes on axis 1."""

    kernels: Kernels

    def softmax_loss_forward(
        self,
        scores: Array,
        labels: Array,
        probability: Array,
        loss: Array,
        valid: Array,
        axis: int,
        ignored: int | None,
        divisor: float | None,
        wrong: Array,
    ) -> None:
        strides = _strides(scores, axis), _strides(probability, axis)
        if not (strides[0] and strides[1] and scores.shape[axis]):
            super().softmax_loss_forward(scores, labels, probability, loss, valid, axis, ignored, divisor, wrong)
            return
        positions, sizes = _cut(scores.shape, axis)
        blocks = max(1, blocks_for(positions * WARP))
        partials = self.xp.empty(2 * blocks, np.float32)
        labels = self.xp.ascontiguousarray(labels)
        args = scores, labels, probability, partials, wrong
        numbers = *sizes, *strides[0], *strides[1], *_ignored(ignored)
        self.kernels.launch("losses", "softmax_loss_forward", (scores.dtype,), blocks, THREADS, *args, *numbers)
        sums = partials, np.int32(blocks), np.float32(divisor or 0), loss, valid, labels, wrong
        self.kernels.launch("losses", "softmax_loss_finish", (), 1, THREADS, *sums)

    def softmax_loss_backward(
        self,
        probability: Array,
        labels: Array,
        dx: Array,
        slope: Array,
        valid: Array,
        axis: int,
        ignored: int | None,
        divisor: float | None,
    ) -> None:
        strides = _strides(probability, axis), _strides(dx, axis)
        if not (strides[0] and strides[1]):
            super().softmax_loss_backward(probability, labels, dx, slope, valid, axis, ignored, divisor)
            return
        positions, sizes = _cut(dx.shape, axis)
        args = probability, self.xp.ascontiguousarray(labels), dx, slope, valid, np.float32(divisor or 0)
        numbers = *sizes, *strides[0], *strides[1], *_ignored(ignored)
        blocks = blocks_for(positions * WARP)
        self.kernels.launch("losses", "softmax_loss_backward", (dx.dtype,), blocks, THREADS, *args, *numbers)


def _strides(array: Array, axis: int) -> tuple[np.int64, ...]:
    """In elements: of the axes before `axis` as one, of those behind it as one, of `axis`; () if they cannot be."""
    classes, inner = array.shape[axis], math.prod(array.shape[axis + 1 :])
    if array.flags.c_contiguous:
        strides = classes * inner, 1, inner
    elif axis == 1 and is_channels_last(array):
        strides = classes * inner, classes, 1
    else:
        return ()
    return tuple(map(np.int64, strides))


def _cut(shape: tuple[int, ...], axis: int) -> tuple[int, tuple[np.int64, ...]]:
    """Positions, and for the kernels positions, classes, and positions behind the axis."""
    classes, inner = shape[axis], math.prod(shape[axis + 1 :])
    positions = math.prod(shape[:axis]) * inner
    return positions, (np.int64(positions), np.int64(classes), np.int64(inner))


def _ignored(label: int | None) -> tuple[np.int32, np.int32]:
    return np.int32(label is not None), np.int32(label or 0)
