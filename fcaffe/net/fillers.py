"""Caffe's fillers, which fill parameters before training, with its float32 arithmetic and its order of draws."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fcaffe.errors import NetError
from fcaffe.net.blob import Blob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from fcaffe.suggestions import did_you_mean

Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]
Filler = Callable[[Shape, pb.FillerParameter, CaffeRandom], Floats]  # returns the values in C order


def fill(array: Floats, filler: pb.FillerParameter, random: CaffeRandom) -> None:
    """Fills an array of a blob's shape (float32, any strides) in place, in C order.

    NetError: unknown type, parameters out of range, or a shape that the filler is not for.
    """
    if filler.type not in FILLERS:
        known = f"{did_you_mean(filler.type, FILLERS)}; known types: {', '.join(sorted(FILLERS))}"
        raise NetError(f"unknown filler type '{filler.type}'{known}")
    if array.size == 0:
        raise NetError(f"{filler.type} filler: nothing to fill in a blob of shape {array.shape}")
    if filler.sparse != -1 and filler.type != "gaussian":
        raise NetError(f"{filler.type} filler: 'sparse' is for the gaussian filler only, remove it")
    array[...] = FILLERS[filler.type](array.shape, filler, random).reshape(array.shape)


def fill_blob(blob: Blob, filler: pb.FillerParameter, random: CaffeRandom) -> None:
    """Fills a blob's data by way of the host. Does nothing if the net is built only for its shapes."""
    if not holds_values(blob.xp):
        return
    if isinstance(blob.data, np.ndarray):
        fill(blob.data, filler, random)
        return
    values = np.empty(blob.shape, np.float32)
    fill(values, filler, random)
    blob.data[...] = blob.xp.asarray(values)


def filler_or(value: float, p: Any, field: str = "filler") -> pb.FillerParameter:
    """The filler in this field of a message, or a constant if the field is not set."""
    found: pb.FillerParameter = getattr(p, field)
    return found if p.HasField(field) else pb.FillerParameter(type="constant", value=value)


def holds_values(xp: Any) -> bool:
    """Whether the arrays of this module hold values; those of a net that is built only for its shapes do not."""
    return getattr(xp, "holds_values", True)


def constant(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    return np.broadcast_to(np.float32(filler.value), shape)


def uniform(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    if not filler.min <= filler.max:
        raise NetError(f"uniform filler: min ({filler.min:g}) must not be above max ({filler.max:g})")
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.nextafter(np.float32(filler.max), np.float32(np.inf)) - np.float32(filler.min)
    if not np.isfinite(width):  # no number is in between
        raise NetError(
            f"uniform filler: min ({filler.min:g}) and max ({filler.max:g}) differ by more than float32 holds"
        )
    return random.uniform(filler.min, filler.max, prod(shape))


def gaussian(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    """With sparse: s, a value is kept with probability s over the number of outputs (the first axis), else 0."""
    if not filler.std > 0:
        raise NetError(f"gaussian filler: std must be above 0, not {filler.std:g}; for equal values use 'constant'")
    outputs = shape[0] if shape else 1
    if not -1 <= filler.sparse <= outputs:
        raise NetError(f"gaussian filler: sparse must be from 0 to {outputs}, the first axis, not {filler.sparse}")
    values = random.normal(filler.mean, filler.std, prod(shape))
    if filler.sparse >= 0:
        kept = np.float32(filler.sparse) / np.float32(outputs)
        values *= random.bernoulli(float(kept), prod(shape), np.float32)  # a product: -0.0 stays, as in Caffe
    return values


def xavier(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    """Glorot and Bengio, 2010."""
    bound = np.sqrt(np.float32(3) / _fan(shape, filler))
    return random.uniform(-bound, bound, prod(shape))


def msra(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    """He, Zhang, Ren and Sun, 2015."""
    return random.normal(0, np.sqrt(np.float32(2) / _fan(shape, filler)), prod(shape))


def positive_unitball(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    """Positive values whose sum over each index of the first axis is 1."""
    rows = random.uniform(0, 1, prod(shape)).reshape(shape[0] if shape else 1, -1)
    rows /= np.add.accumulate(rows, axis=1)[:, -1:]  # unlike sum(), accumulate adds in order
    return rows


def bilinear(shape: Shape, filler: pb.FillerParameter, random: CaffeRandom) -> Floats:
    """Weights of a Deconvolution that upsamples by interpolation."""
    if len(shape) != 4 or shape[2] != shape[3]:
        raise NetError(f"bilinear filler: needs four axes and a square kernel, not the shape {shape}")
    width = shape[3]
    factor = ceil(width / 2)
    center = np.float32((width - 1) / (2.0 * factor))
    profile = 1 - np.abs(np.arange(width, dtype=np.float32) / np.float32(factor) - center)
    return np.broadcast_to(profile[:, None] * profile, shape)


def _fan(shape: Shape, filler: pb.FillerParameter) -> np.float32:
    """Connections per output (FAN_IN), per input (FAN_OUT), or the mean of both, as Caffe reads them off the shape."""
    count = prod(shape)
    outputs, inputs, *_ = (*shape, 1, 1)
    fan_in, fan_out = count // outputs, count // inputs
    if filler.variance_norm == pb.FillerParameter.AVERAGE:
        return np.float32(fan_in + fan_out) / np.float32(2)
    return np.float32(fan_out if filler.variance_norm == pb.FillerParameter.FAN_OUT else fan_in)


FILLERS: dict[str, Filler] = {
    filler.__name__: filler for filler in (constant, uniform, gaussian, xavier, msra, positive_unitball, bilinear)
}
