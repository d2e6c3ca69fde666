"""Affine functions of channels, y = scale * x + shift, and how they become part of the weights before them.

A BatchNorm that uses its running statistics, a Scale and a Bias are such functions, and so is one behind the other. All
arithmetic is in float64 and rounded once, to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fcaffe.engines.memory import Array


@dataclass(frozen=True)
class Affine:
    """y = scale * x + shift, each (channels,) of float64."""

    scale: np.ndarray
    shift: np.ndarray

    def then(self, other: Affine) -> Affine:
        """This one first, then the other."""
        return Affine(self.scale * other.scale, self.shift * other.scale + other.shift)

    def of_weights(
        self, weights: Array, bias: Array | None, outputs_axis: int = 0, group: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weights, of their shape, and the bias (outputs,) of a layer that has this function folded in.

        The outputs lie along `outputs_axis` of the weights: 0 for Convolution and InnerProduct. 1 is for a
        Deconvolution, (inputs, outputs / group, kernel...), in which each group of inputs has its own, and a transposed
        InnerProduct.
        """
        each = self.scale.size // group
        shape = group, weights.shape[0] // group if outputs_axis else 1, each, -1
        folded = np.empty(weights.shape, np.float32)
        np.multiply(  # with no array of float64
            weights.reshape(shape),
            self.scale.reshape(group, 1, each, 1),
            out=folded.reshape(shape),
            dtype=np.float64,
            casting="same_kind",
        )
        shift = self.shift if bias is None else self.scale * np.reshape(bias, -1) + self.shift
        return folded, shift.astype(np.float32)


def identity(channels: int) -> Affine:
    return Affine(np.ones(channels), np.zeros(channels))


def normalization(sums: Sequence[Array], eps: float) -> Affine:
    """What a BatchNorm computes whose three blobs hold these sums (see RunningStatistics)."""
    mean, variance, total = (np.asarray(array, np.float64).reshape(-1) for array in sums)
    factor = 1 / total[0] if total[0] else 0.0
    scale = 1 / np.sqrt(variance * factor + eps)
    return Affine(scale, -mean * factor * scale)


def scaling(scale: Array, shift: Array | None) -> Affine:
    """What a Scale computes, with a bias or without."""
    scale = np.asarray(scale, np.float64).reshape(-1)
    return Affine(scale, np.zeros(scale.size) if shift is None else np.asarray(shift, np.float64).reshape(-1))
