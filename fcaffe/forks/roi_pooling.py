"""Pooling of regions of interest: ROIPooling, PSROIPooling, ROIAlign.

Bottoms: maps (N, C, H, W) and regions (R, 5), each with the index of its image and the corners x1, y1, x2, y2 in
pixels. The host computes the bins of all regions; the maps stay on the device. Regions get zeros as gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.net import Array, Blob, Context, Layer, Traits, register
from fcaffe.proto import forks

LOWEST = np.finfo(np.float32).min
MOST_SAMPLES = 256  # per bin and axis, so that a huge region needs no huge arrays
ALL = slice(None)


class RegionLayer(Layer):
    """Base: top (R, channels, `grid`), one row for each region of the second bottom.

    A subclass overrides `forward`, `backward`, and `channels` unless the top has those of the maps.
    """

    traits = Traits(bottoms=2, tops=1, in_place=False, needs_host=True, constants=(1,))
    field = "roi_pooling_param"
    edges = 0  # by how much the top has more rows and columns than bins
    scale: np.float32  # cells per pixel
    grid: tuple[int, int]  # rows and columns of the top
    pad_ratio = np.float32(0)  # by how much of its size MS-CNN widens a region on each side

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = getattr(self.param, self.field)
        if p.pooled_h < 1 or p.pooled_w < 1 or not p.spatial_scale > 0:
            raise self.error(f"{self.field} needs pooled_h and pooled_w, both at least 1, and spatial_scale above 0")
        self.scale, self.grid = np.float32(p.spatial_scale), (p.pooled_h + self.edges, p.pooled_w + self.edges)
        self.pad_ratio = np.float32(getattr(p, "pad_ratio", 0))

    def channels(self, maps: int) -> int:
        """Channels of the top for the number of channels of the maps."""
        return maps

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        maps, regions = bottom[0].shape, bottom[1].shape
        if len(maps) != 4 or min(maps[1:]) < 1:
            raise self.error(f"needs maps of four axes (N, C, H, W), not {self.bottom_name(0)} {maps}")
        if len(regions) < 2 or regions[1] != 5 or bottom[1].count != 5 * regions[0]:
            raise self.error(
                f"needs regions of shape (R, 5), each with an image index and the corners x1, y1, x2, y2, not "
                f"{self.bottom_name(1)} {regions}"
            )
        top[0].reshape(regions[0], self.channels(maps[1]), *self.grid)

    def read_regions(self, bottom: list[Blob]) -> tuple[np.ndarray, list[tuple[np.ndarray, int, int]]]:
        """Image indices (R,); for rows and for columns the ends (R, 2) of the regions in pixels, the number of bins and
        that of cells. Raises LayerError if a row is no region."""
        rows = self.engine.to_numpy(bottom[1].data).reshape(-1, 5)
        images, _, *size = bottom[0].shape
        wrong = ~np.isfinite(rows).all(axis=1) | (rows[:, 0] <= -1) | (rows[:, 0] >= images)
        if wrong.any():
            index = int(wrong.argmax())
            values = ", ".join(f"{value:g}" for value in rows[index])
            raise self.error(
                f"row {index} of {self.bottom_name(1)} is no region of the {images} image(s) of {self.bottom_name(0)}: "
                f"({values}); correct the image index, or lower the learning rate if corners are not finite"
            )
        pad = (rows[:, 3:] - rows[:, 1:3] + 1) * self.pad_ratio if self.pad_ratio else 0
        ends = np.stack([rows[:, 1:3] - pad, rows[:, 3:] + pad], axis=2)
        return rows[:, 0].astype(np.int64), [*zip((ends[:, 1], ends[:, 0]), self.grid, size, strict=True)]

    def random_regions(self, random: np.random.Generator, bottom: list[Blob]) -> np.ndarray:
        """Regions in the maps, in the shape of the second bottom, for tools that run a net on values of no meaning."""
        images, _, height, width = bottom[0].shape
        size = np.array([width, height, width, height]) / self.scale
        corners = np.sort(random.uniform(0, size, (bottom[1].shape[0], 4)).reshape(-1, 2, 2), axis=1)
        index = random.integers(0, max(1, images), len(corners))
        return np.column_stack([index, corners.reshape(-1, 4)]).astype(np.float32).reshape(bottom[1].shape)


@register("ROIPooling")
class ROIPooling(RegionLayer):
    """top (R, C, pooled_h, pooled_w) = the maximum of each bin of each region; 0 for a bin outside the map.

    Corners are scaled, then rounded. The last cell belongs to the region, so bins overlap. MS-CNN's `pad_ratio` first
    adds this fraction of the width and height to each side. Of equal values the first in row order gets the gradient.
    A region with x2 < x1 is one cell wide and has a gradient, as in the fork's CPU code. NaN never is the maximum.
    """

    fork = forks.FAST_RCNN

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.cells = Blob(self.xp, (), channels_last=True, dtype="int64")  # index of each maximum in N * H * W, or -1

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.cells.reshape(*top[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, x = self.xp, self.xp.fmax(channels_last(bottom[0].data), LOWEST)
        y, cells = channels_last(top[0].data), channels_last(self.cells.data)
        images, axes = self.read_regions(bottom)
        bins = [self._bins(*axis) for axis in axes]
        y[...] = 0
        cells[...] = -1
        for region, image in enumerate(images.tolist()):
            (upper, rows), (left, columns) = (_filled(starts[region], ends[region]) for starts, ends in bins)
            if not rows or not columns:
                continue
            first = rows[0].start
            band = x[image, first : rows[-1].stop].swapaxes(0, 1)
            of_columns = xp.stack([band[column].max(axis=0) for column in columns], axis=1)  # (band's rows, Q, C)
            parts = [of_columns[row.start - first : row.stop - first] for row in rows]
            window = region, slice(upper, upper + len(rows)), slice(left, left + len(columns))
            y[window] = xp.stack([part.max(axis=0) for part in parts])
            if self.context.saves_for_backward:
                chosen = xp.stack([row.start + part.argmax(axis=0) for row, part in zip(rows, parts, strict=True)])
                at = xp.stack([column.start + band[column].argmax(axis=0) for column in columns], axis=1)
                at = xp.take_along_axis(at, chosen - first, axis=0)
                cells[window] = (image * x.shape[1] + chosen) * x.shape[2] + at

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [self.cells]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx, cells = channels_last(bottom[0].diff), channels_last(self.cells.data)
        count, channels = dx.size, dx.shape[-1]
        targets = cells * channels + self.xp.arange(channels)
        targets = self.xp.where(cells < 0, count, targets).reshape(-1)  # one more takes those of empty bins
        gradients = channels_last(top[0].diff).reshape(-1)
        sums = self.xp.bincount(targets, weights=gradients, minlength=count + 1)
        dx[...] = sums[:count].reshape(dx.shape)

    def _bins(self, ends: np.ndarray, bins: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        first, last = _rounded(ends * self.scale).T[:, :, None]
        width = np.maximum(last - first + 1, 1).astype(np.float32) / np.float32(bins)
        return _cells(width, np.float32(0), first, bins, size)


class WeightedSums(RegionLayer):
    """Base: sums of the maps over all cells, weighted along rows and along columns."""

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        """(R, bins, size): the weight of each cell along one axis, from the ends (R, 2) of the regions in pixels."""
        raise NotImplementedError

    def parts(self) -> Iterator[tuple[slice, slice, slice]]:
        """Channels of the maps, rows and columns of the top that belong together."""
        yield ALL, ALL, ALL

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = channels_last(bottom[0].data), channels_last(top[0].data)
        for (image, members, channels, p, q), rows, columns in self._weights(bottom):
            maps = x[image, :, :, channels]
            along = rows.reshape(-1, rows.shape[2]) @ maps.reshape(maps.shape[0], -1)
            along = along.reshape(*rows.shape[:2], *maps.shape[1:])
            y[members, p, q] = self.xp.matmul(columns[:, None], along)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom[1:]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx, dy = channels_last(bottom[0].diff), channels_last(top[0].diff)
        dx[...] = 0
        for (image, members, channels, p, q), rows, columns in self._weights(bottom):
            along = self.xp.matmul(columns.transpose(0, 2, 1)[:, None], dy[members, p, q])
            share = rows.reshape(-1, rows.shape[2]).T @ along.reshape(rows.shape[0] * rows.shape[1], -1)
            dx[image, :, :, channels] = share.reshape(-1, *along.shape[2:])

    def _weights(self, bottom: list[Blob]) -> Iterator[tuple[Any, Array, Array]]:
        """For each image and part: (image, its M regions, channels, rows and columns of the top), the weights of rows
        (M, P, H) and of columns (M, Q, W)."""
        images, axes = self.read_regions(bottom)
        rows, columns = (self.engine.from_numpy(self.axis_weights(*axis).astype(np.float32)) for axis in axes)
        for image in np.unique(images).tolist():
            members = self.engine.from_numpy(np.flatnonzero(images == image))
            for channels, p, q in self.parts():
                yield (image, members, channels, p, q), rows[members, p], columns[members, q]


@register("PSROIPooling")
class PSROIPooling(WeightedSums):
    """top (R, output_dim, group_size, group_size) = the mean of each bin of each region, in maps of its own.

    The maps have output_dim * group_size^2 channels: bin (row, column) of output d reads channel
    (d * group_size + row) * group_size + column. Corners are rounded, then scaled. A bin outside the map gives 0.
    """

    fork = forks.RFCN

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.psroi_pooling_param
        if p.output_dim < 1 or p.group_size < 1 or p.spatial_scale <= 0:
            raise self.error("psroi_pooling_param needs output_dim, group_size and spatial_scale, all positive")
        self.scale, self.grid = np.float32(p.spatial_scale), (p.group_size, p.group_size)

    def channels(self, maps: int) -> int:
        p = self.param.psroi_pooling_param
        if maps != p.output_dim * p.group_size**2:
            raise self.error(
                f"needs output_dim * group_size^2 = {p.output_dim * p.group_size**2} channels, not the {maps} of "
                f"{self.bottom_name(0)}"
            )
        return int(p.output_dim)

    def parts(self) -> Iterator[tuple[slice, slice, slice]]:
        bins = self.grid[0] * self.grid[1]
        for channel, (row, column) in enumerate(np.ndindex(self.grid)):
            yield slice(channel, None, bins), slice(row, row + 1), slice(column, column + 1)

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        start, end = ((_rounded(ends) + np.array([0, 1])).astype(np.float32) * self.scale).T[:, :, None]
        width = np.maximum(end - start, np.float32(0.1)) / np.float32(bins)
        first, behind = (edges[..., None] for edges in _cells(width, start, 0, bins, size))
        inside = (np.arange(size) >= first) & (np.arange(size) < behind)
        return inside / np.maximum(behind - first, 1)


class ROIAlignCorners(WeightedSums):
    """top (R, C, pooled_h + 1, pooled_w + 1) = bilinear samples at the corners of the bins.

    A Pooling of kernel 2 and stride 1 is meant to follow. Half a cell is subtracted after scaling. Samples more than
    half a cell outside the map are 0, as are regions without area. `pad_ratio` is as in ROIPooling.
    """

    fork = forks.MSCNN
    edges = 1

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        start, end = (ends * self.scale - np.float32(0.5)).T[:, :, None]
        samples = start + _steps(bins) * ((end - start) / np.float32(bins - 1))
        inside = (end > start) & (samples >= -0.5) & (samples <= size - 0.5)
        return _bilinear(samples, size) * inside[..., None]


class ROIAlignMean(WeightedSums):
    """top (R, C, pooled_h, pooled_w) = the mean of bilinear samples that lie evenly in each bin (He et al. 2017).

    `sampling_ratio` is the number of samples per bin and axis; without it, or with 0 or less, the cells per bin,
    rounded up. Regions are at least one cell wide. Samples more than a cell outside the map are 0.
    """

    fork = forks.MASK_RCNN
    field = "roi_align_param"

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        if self.param.HasField("roi_pooling_param"):
            raise self.error(f"roi_pooling_param is of {forks.MSCNN}, roi_align_param of {self.fork}; remove one")
        if self.param.roi_align_param.sampling_ratio > MOST_SAMPLES:
            raise self.error(f"sampling_ratio must be at most {MOST_SAMPLES}")

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        start, end = (ends * self.scale).T[:, :, None, None]
        width = np.maximum(end - start, 1) / np.float32(bins)
        ratio = self.param.roi_align_param.sampling_ratio
        counts = np.full_like(width, ratio) if ratio > 0 else np.minimum(np.ceil(width), MOST_SAMPLES)
        steps = _steps(int(counts.max(initial=1)))
        samples = start + (_steps(bins)[:, None] + (steps + np.float32(0.5)) / counts) * width
        inside = (steps < counts) & (samples >= -1) & (samples <= size)
        return (_bilinear(samples, size) * (inside / counts)[..., None]).sum(axis=2)


@register("ROIAlign")
def roi_align(param: Any, context: Context) -> Layer:
    """MS-CNN's layer, which reads roi_pooling_param, or Mask R-CNN's, which reads roi_align_param."""
    return (ROIAlignMean if param.HasField("roi_align_param") else ROIAlignCorners)(param, context)


def _rounded(values: np.ndarray) -> np.ndarray:
    """To whole numbers, halves away from zero, in float64."""
    return np.copysign(np.floor(np.abs(values.astype(np.float64)) + 0.5), values)


def _steps(bins: int) -> np.ndarray:
    return np.arange(bins, dtype=np.float32)


def _cells(width: np.ndarray, start: Any, shift: Any, bins: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(R, bins) each: the first cell of every bin, and the one behind its last, clipped to the map.

    `width` is that of a bin, the first bin begins at `start`, and the rounded edges are moved by `shift`, all (R, 1).
    """
    first = np.floor(_steps(bins) * width + start) + shift
    behind = np.ceil((_steps(bins) + 1) * width + start) + shift
    first, behind = (np.clip(edges, 0, size).astype(np.int64) for edges in (first, behind))
    return first, behind


def _filled(starts: np.ndarray, ends: np.ndarray) -> tuple[int, list[slice]]:
    """The index of the first bin with cells, and the cells of all such bins, which follow one another."""
    filled = np.flatnonzero(ends > starts)
    return int(filled[:1].sum()), [slice(starts[index], ends[index]) for index in filled]


def _bilinear(samples: np.ndarray, size: int) -> np.ndarray:
    """(..., size): the weight of each cell in a bilinear sample at these coordinates, clamped to the map."""
    samples = np.clip(samples.astype(np.float64), 0, size - 1)[..., None]
    return np.maximum(0, 1 - np.abs(samples - np.arange(size)))
