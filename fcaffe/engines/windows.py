"""Sliding windows over the spatial axes of channels-last arrays, for convolution and pooling in plain array code."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fcaffe.engines.memory import Array, check_room
from fcaffe.errors import NetError

MOST = 2**31 - 1  # of a kernel, stride, pad or dilation: an int of C, as in Caffe and oneDNN


@dataclass(frozen=True)
class Windows:
    """Kernel, stride, padding (before each axis) and dilation of the windows, one number a spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (*self.kernel, *self.stride, *self.pad, *self.dilation)
        if max(numbers, default=0) > MOST:
            raise NetError(f"kernel, stride, pad and dilation are at most {MOST}, not {max(numbers)}")

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.kernel, self.stride, self.pad, self.dilation))

    @property
    def size(self) -> int:
        """Elements of one window (of one channel)."""
        return math.prod(self.kernel)

    def is_pointwise(self) -> bool:
        """A 1x1 window at every pixel: nothing slides."""
        return self.size == 1 and set(self.stride) == {1} and set(self.pad) == {0}

    def overlap(self) -> bool:
        """Whether an element may be in several windows."""
        return any(d * (k - 1) >= s for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True))

    def convolved(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Output size of a convolution over this input size: windows that fit wholly, rounded down."""
        return tuple(
            (n + 2 * p - (d * (k - 1) + 1)) // s + 1
            for n, k, s, p, d in zip(size, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        )

    def deconvolved(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Output size of the transposed convolution."""
        return tuple(
            s * (n - 1) + d * (k - 1) + 1 - 2 * p
            for n, k, s, p, d in zip(size, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        )

    def padded_size(self, size: tuple[int, ...], output_size: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial size of a buffer that holds the padded input and every element of every window."""
        return tuple(
            max(n + p, (o - 1) * s + d * (k - 1) + 1)
            for n, o, k, s, p, d in zip(
                size, output_size, self.kernel, self.stride, self.pad, self.dilation, strict=True
            )
        )

    def areas(self, xp: Any, size: tuple[int, ...], output_size: tuple[int, ...]) -> Array:
        """(output_size...), float32: elements of each window clipped to the padded image."""
        product = xp.ones((), xp.float32)
        for n, o, k, s, p in zip(size, output_size, self.kernel, self.stride, self.pad, strict=True):
            start = xp.arange(o) * s - p
            product = product[..., None] * (xp.minimum(start + k, n + p) - start).astype(xp.float32)
        return product

    def interior(self, size: tuple[int, ...]) -> tuple[slice, ...]:
        """Where the input of this size lies in the padded buffer (batch axis first)."""
        return (slice(None), *(slice(p, p + n) for n, p in zip(size, self.pad, strict=True)))

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """The elements of a window in row order."""
        return itertools.product(*(range(k) for k in self.kernel))

    def shifted(self, offset: tuple[int, ...], output_size: tuple[int, ...]) -> tuple[slice, ...]:
        """Index of the padded buffer: for every window its element `offset`."""
        index = (
            slice(e * d, e * d + (o - 1) * s + 1, s)
            for e, o, s, d in zip(offset, output_size, self.stride, self.dilation, strict=True)
        )
        return (slice(None), *index)


def pad_channels_last(xp: Any, x: Array, windows: Windows, output_size: tuple[int, ...], fill: float = 0.0) -> Array:
    """x (N, spatial..., C) in a buffer that every window lies within; x itself if it does already."""
    size = x.shape[1:-1]
    padded = windows.padded_size(size, output_size)
    if padded == size and not any(windows.pad):
        return x
    check_room(x.shape[0] * math.prod(padded) * x.shape[-1] * x.dtype.itemsize)
    buffer = xp.full((x.shape[0], *padded, x.shape[-1]), fill, dtype=x.dtype)
    buffer[windows.interior(size)] = x
    return buffer


def add_windows(
    xp: Any, out: Array, windows: Windows, output_size: tuple[int, ...], part: Callable[[tuple[int, ...]], Array]
) -> None:
    """out (N, spatial..., C) = part(offset) (N, output_size..., C) added to the element `offset` of every window."""
    size = out.shape[1:-1]
    padded = xp.zeros((out.shape[0], *windows.padded_size(size, output_size), out.shape[-1]), out.dtype)
    for offset in windows.offsets():
        padded[windows.shifted(offset, output_size)] += part(offset)
    out[...] = padded[windows.interior(size)]


def patches(xp: Any, padded: Array, windows: Windows, output_size: tuple[int, ...]) -> Array:
    """A view (N, output_size..., kernel..., C) of the padded buffer: each window's elements side by side."""
    n, *spatial = padded.strides[:-1]
    shape = (padded.shape[0], *output_size, *windows.kernel, padded.shape[-1])
    strides = (
        n,
        *(step * s for step, s in zip(spatial, windows.stride, strict=True)),
        *(step * d for step, d in zip(spatial, windows.dilation, strict=True)),
        padded.strides[-1],
    )
    return xp.lib.stride_tricks.as_strided(padded, shape, strides)
