"""Interp, DeephiResize and Upsample: maps of another height and width."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.layers.labels import read_indices
from fcaffe.net import Array, Blob, Context, Layer, Traits, placements, register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


class Resizing(Layer):
    """Base: top (N, C, new height, new width) from a bottom (N, C, height, width)."""

    traits = Traits(bottoms=1, tops=1, reshapes_by_shape=True, reads="neither")
    rule = placements.by_sample

    def new_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Height and width of the top for those of the bottom. Raises LayerError."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"needs a bottom of four axes (N, C, H, W), not {shape}")
        size = self.new_size(shape[2:])
        if min(size) < 1:
            raise self.error(f"would make maps of {size} from the bottom {shape}; correct its fields")
        top[0].reshape(*shape[:2], *size)


@register("Interp")
class Interp(Resizing):
    """Bilinear interpolation with aligned corners: the outermost positions of bottom and top coincide.

    The size is `height` and `width`, or follows from a `zoom_factor`, (n - 1) * zoom + 1, or a `shrink_factor`,
    (n - 1) / shrink + 1. A single factor wins over height and width, and these over both factors, which apply in the
    order shrink, zoom. `pad_beg` and `pad_end`, at most 0, first crop rows and columns at the beginning and at the end.
    """

    fork = forks.PSPNET

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        sizes = zip(self.cropped, top[0].shape[2:], strict=True)
        rows, columns = (interpolation(n, self.positions(n, count)) for n, count in sizes)
        self.columns = list(map(self.engine.from_numpy, columns))
        self.bands = [(*band, self.engine.from_numpy(part)) for *band, part in bands(rows[-1])]

    def positions(self, size: int, count: int) -> np.ndarray:
        """The position in the bottom of each of `count` positions of the top, along an axis."""
        ratio = np.float32(size - 1) / np.float32(count - 1) if count > 1 else np.float32(0)
        return np.arange(count, dtype=np.float32) * ratio

    def new_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        p = self.param.interp_param
        self.cropped = [n + p.pad_beg + p.pad_end for n in size]
        if p.pad_beg > 0 or p.pad_end > 0 or min(self.cropped) < 1:
            raise self.error(f"interp_param.pad_beg and pad_end crop; 0 or less, they must leave something of {size}")
        if p.shrink_factor < 1 or p.zoom_factor < 1:
            raise self.error("interp_param.shrink_factor and zoom_factor must be positive")
        shrinks, zooms = p.HasField("shrink_factor"), p.HasField("zoom_factor")
        if shrinks == zooms and p.HasField("height") and p.HasField("width"):
            return p.height, p.width
        if not shrinks and not zooms:
            raise self.error("interp_param needs height and width, zoom_factor, or shrink_factor")
        height, width = (((n - 1) // p.shrink_factor) * p.zoom_factor + 1 for n in self.cropped)
        return height, width

    def crop(self, array: Array) -> Array:
        start = -self.param.interp_param.pad_beg
        return array[:, :, start : start + self.cropped[0], start : start + self.cropped[1]]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        left, right, share, _ = self.columns
        x = channels_last(self.crop(bottom[0].data))
        # Repeated, since NumPy is slow where only C values are side by side.
        share = self.xp.repeat(share[:, None], x.shape[-1], axis=1)
        x = self.xp.take(x, left, axis=2) * (1 - share) + self.xp.take(x, right, axis=2) * share
        y = channels_last(top[0].data)
        second = self.xp.empty_like(y[:, : max(len(weights) for *_, weights in self.bands)])
        for inside, outside, weights in self.bands:
            part = self.xp.multiply(x[:, inside][:, :1], weights[:, 0, None, None], out=y[:, outside])
            if weights.shape[1] > 1:
                terms = second[:, : len(weights)]
                part += self.xp.multiply(x[:, inside][:, 1:], weights[:, 1, None, None], out=terms)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy = channels_last(top[0].diff)
        images, height, width, channels = dy.shape
        dy = dy.reshape(images, height, width * channels)
        rows = self.xp.zeros((images, self.cropped[0], width * channels), dy.dtype)
        for inside, outside, weights in self.bands:
            rows[:, inside] += self._product(weights.T, dy[:, outside])
        dx = self._product(self.columns[-1].T, rows.reshape(images, self.cropped[0], width, channels))
        if self.cropped != list(bottom[0].shape[2:]):
            bottom[0].diff[...] = 0
        channels_last(self.crop(bottom[0].diff))[...] = dx

    def _product(self, matrix: Array, values: Array) -> Array:
        """The matrix (M, K) times values (..., K, N)."""
        product = self.xp.empty((*values.shape[:-2], len(matrix), values.shape[-1]), values.dtype)
        self.engine.products(matrix, values, product)
        return product


@register("DeephiResize")
class DeephiResize(Interp):
    """Resizes as OpenCV does: BILINEAR with the centres of pixels as their positions, or NEAREST, rounded down.

    The size is `new_height` and `new_width`, or the bottom's times `scale_h` and `scale_w`.
    """

    fork = forks.XILINX

    def new_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        p = self.param.deephi_resize_param
        self.cropped, self.nearest = list(size), p.resize_type == pb.DeephiResizeParameter.NEAREST
        if p.HasField("new_height") and p.HasField("new_width"):
            return p.new_height, p.new_width
        if 0 < p.scale_h * p.scale_w < math.inf:
            return int(size[0] * p.scale_h), int(size[1] * p.scale_w)
        raise self.error("deephi_resize_param needs new_height and new_width, or scale_h and scale_w")

    def positions(self, size: int, count: int) -> np.ndarray:
        if self.nearest:
            return np.floor(np.arange(count) * (size / count)).astype(np.float32)
        return np.clip((np.arange(count) + 0.5) * (size / count) - 0.5, 0, size - 1).astype(np.float32)


def interpolation(size: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """How each of the positions along an axis is interpolated between two of `size` whole ones.

    Returns low, high, share and matrix. Position i is (1 - share[i]) * low[i] + share[i] * high[i]; the matrix
    (count, size) does the same as a product.
    """
    low = np.minimum(positions.astype(np.int64), size - 1)
    high, share = np.minimum(low + 1, size - 1), positions - low.astype(np.float32)
    rows = np.arange(len(positions))
    matrix = np.zeros((len(positions), size), np.float32)
    matrix[rows, low] += 1 - share
    matrix[rows, high] += share
    return low, high, share, matrix


def bands(matrix: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Cuts a matrix of `interpolation` so that a NaN reaches the results of its neighbours only.

    Yields for consecutive positions the values between which they lie, the positions, and their part of the matrix.
    """
    low = (matrix != 0).argmax(axis=1)
    starts = np.flatnonzero(np.diff(low, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(low)], strict=True):
        inside = slice(low[start], low[start] + 2)
        yield inside, slice(start, end), matrix[start:end, inside]


class UpsampleByMask(Resizing):
    """Each value moves to its index in the mask, the second top of a MAX Pooling; the other values of a map are 0.

    The size is `upsample_h` and `upsample_w`, or that of the bottom times `scale_h` and `scale_w` or `scale` (2 by
    default), less one where `pad_out_h` or `pad_out_w` is true. Of values with one index the last in row order stays,
    and all of them get its gradient.
    """

    fork = forks.SEGNET
    traits = replace(Resizing.traits, bottoms=2, constants=(1,))

    def new_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        p = self.param.upsample_param
        if p.HasField("upsample_h") and p.HasField("upsample_w"):
            return p.upsample_h, p.upsample_w
        factors = [getattr(p, scale if p.HasField(scale) else "scale") or 2 for scale in ("scale_h", "scale_w")]
        less = p.pad_out_h, p.pad_out_w
        if any(one and factor != 2 for one, factor in zip(less, factors, strict=True)):
            raise self.error(f"upsample_param.pad_out_h and pad_out_w are for scales of 2 only, not {factors}")
        return size[0] * factors[0] - less[0], size[1] * factors[1] - less[1]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[1].shape != bottom[0].shape:
            raise self.error(f"needs a mask of the shape of its first bottom: {self.named_shapes(bottom)}")
        self.area = math.prod(top[0].shape[2:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = channels_last(bottom[0].data), channels_last(top[0].data)
        positions, wrong = self._positions(bottom)
        values = self.xp.where(wrong, self.xp.nan, x)
        y[...] = self.engine.scattered(values.reshape(-1), positions.reshape(-1), y.size).reshape(y.shape)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom[1:]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        positions, _ = self._positions(bottom)
        channels_last(bottom[0].diff)[...] = channels_last(top[0].diff).reshape(-1)[positions]

    def _positions(self, bottom: list[Blob]) -> tuple[Array, Array]:
        """(N, h, w, C): the position of each value in the top's channels-last values, and where the mask is wrong."""
        indices = read_indices(self, bottom, 1, self.area, "the top's maps")
        where, wrong = channels_last(indices.values), channels_last(indices.wrong)
        images, *_, channels = where.shape
        first = self.xp.arange(images).reshape(-1, 1, 1, 1) * (self.area * channels) + self.xp.arange(channels)
        return where * channels + first, wrong


class UpsampleNearest(Resizing):
    """Each value becomes a square of scale x scale values (`scale` is 1 by default)."""

    fork = forks.YOLO

    def new_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        p = self.param.upsample_param
        self.scale = p.scale if p.HasField("scale") else 1
        return size[0] * self.scale, size[1] * self.scale

    def squares(self, array: Array) -> Array:
        """An array of the top as (N, C, h, scale, w, scale)."""
        images, channels, height, width = array.shape
        return array.reshape(images, channels, height // self.scale, self.scale, width // self.scale, self.scale)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.squares(top[0].data)[...] = bottom[0].data[:, :, :, None, :, None]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx, squares = bottom[0].diff, self.squares(top[0].diff)
        dx[...] = 0
        for row, column in np.ndindex(self.scale, self.scale):
            dx += squares[:, :, :, row, :, column]


@register("Upsample")
def upsample(param: Any, context: Context) -> Layer:
    """With a mask the layer of SegNet's fork, with a single bottom that of MobileNet-YOLO's."""
    return (UpsampleByMask if len(param.bottom) > 1 else UpsampleNearest)(param, context)
