"""Scales and shifts of channels, and how weights take them in. All of it is arithmetic in float64, on arrays alone.

A BatchNorm with fixed statistics, a Scale and a Bias each compute scale * x + shift, with one of each for a channel.
What comes out of a convolution or an inner product becomes that if its weights are multiplied by the scale, and its
bias becomes scale * bias + shift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Affine:
    """y = scale * x + shift; both (channels,) of float64."""

    scale: np.ndarray
    shift: np.ndarray

    def then(self, other: Affine) -> Affine:
        """What this and then the other compute."""
        return Affine(self.scale * other.scale, self.shift * other.scale + other.shift)


def identity(channels: int) -> Affine:
    return Affine(np.ones(channels), np.zeros(channels))


def normalization(mean: np.ndarray, variance: np.ndarray, factor: float, eps: float) -> Affine:
    """What a BatchNorm with these blobs computes: sums (channels,) of means and variances, and what they are divided
    by; 0 of it stands for no sums at all, as in Caffe."""
    part = 1 / factor if factor else 0.0
    scale = 1 / np.sqrt(np.asarray(variance, np.float64) * part + eps)
    return Affine(scale, -np.asarray(mean, np.float64) * part * scale)


def fold(
    weights: np.ndarray, bias: np.ndarray | None, affine: Affine, outputs_axis: int = 0, group: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Weights, of the shape that they had, and bias (outputs,) of a layer that computes `affine` as well.

    The outputs lie along `outputs_axis` of the weights: 0 for Convolution and InnerProduct. 1 is for a Deconvolution,
    (inputs, outputs / group, kernel...), in which each group of inputs has its own, and a transposed InnerProduct.
    """
    values = np.asarray(weights, np.float64)
    if outputs_axis == 0:
        scaled = values.reshape(affine.scale.size, -1) * affine.scale[:, None]
    else:
        each = affine.scale.size // group
        scaled = values.reshape(group, values.shape[0] // group, each, -1) * affine.scale.reshape(group, 1, each, 1)
    shift = affine.shift if bias is None else np.asarray(bias, np.float64).reshape(-1) * affine.scale + affine.shift
    return scaled.reshape(values.shape), shift
