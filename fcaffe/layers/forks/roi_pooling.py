"""Pooling of regions of interest: ROIPooling, PSROIPooling, ROIAlign.

Bottoms: maps (N, C, H, W) and regions (R, 5), each with the index of its image and the corners x1, y1, x2, y2 in
pixels. The host computes the bins of all regions; the maps stay on the device. Regions get zeros as gradient.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.net import Array, Blob, Context, Layer, Traits, register
from fcaffe.proto import forks

LOWEST = np.float32(-3.4028234663852886e38)
INDEX_BITS = 32  # of a key (see _keys)
MOST_SAMPLES = 256  # per bin and axis, so that a huge region needs no huge arrays
INDEX_MASK = (1 << INDEX_BITS) - 1


class RegionLayer(Layer):
    """Base: top (R, channels, `grid`), one row for each region of the second bottom.

    A subclass overrides `read_size`, and `channels` unless the top has those of the maps.
    """

    traits = Traits(bottoms=2, tops=1, needs_host=True, repeatable=True)
    scale: np.float32  # cells per pixel
    grid: tuple[int, int]  # rows and columns of the top

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if any(blob in bottom for blob in top):
            raise self.error("does not work in place; give its top another name")
        self.read_size()

    def read_size(self) -> None:
        """Set `scale` and `grid` from the parameters."""
        raise NotImplementedError

    def channels(self, maps: int) -> int:
        """Channels of the top for the number of channels of the maps."""
        return maps

    def pooled_size(self, p: Any, message: str) -> tuple[int, int]:
        if p.pooled_h < 1 or p.pooled_w < 1:
            raise self.error(f"{message} needs pooled_h and pooled_w, both at least 1")
        self.scale = np.float32(p.spatial_scale)
        return p.pooled_h, p.pooled_w

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

    def read_regions(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Image indices (R,), and the ends (R, 2) in y and in x, float32. Raises LayerError if one is no region."""
        rows = self.engine.to_numpy(bottom[1].data).reshape(-1, 5)
        images = bottom[0].shape[0]
        wrong = ~np.isfinite(rows).all(axis=1) | (rows[:, 0] <= -1) | (rows[:, 0] >= images)
        if wrong.any():
            index = int(wrong.argmax())
            values = ", ".join(f"{value:g}" for value in rows[index])
            raise self.error(
                f"row {index} of {self.bottom_name(1)} is no region of the {images} image(s) of {self.bottom_name(0)}: "
                f"({values}); correct the image index, or lower the learning rate if corners are not finite"
            )
        return rows[:, 0].astype(np.int64), rows[:, [2, 4]], rows[:, [1, 3]]

    def random_regions(self, random: np.random.Generator, bottom: list[Blob]) -> np.ndarray:
        """Regions in the maps, in the shape of the second bottom, for tools that run a net on values of no meaning."""
        images, _, height, width = bottom[0].shape
        size = np.array([width, height, width, height]) / self.scale
        corners = np.sort(random.uniform(0, size, (bottom[1].shape[0], 4)).reshape(-1, 2, 2), axis=1)
        index = random.integers(0, max(1, images), len(corners))
        return np.column_stack([index, corners.reshape(-1, 4)]).astype(np.float32).reshape(bottom[1].shape)

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index == 0


@register("ROIPooling")
class ROIPooling(RegionLayer):
    """top (R, C, pooled_h, pooled_w) = the maximum of each bin of each region; 0 for a bin outside the map.

    Corners are scaled, then rounded. The last cell belongs to the region, so bins overlap. MS-CNN's `pad_ratio` first
    adds this fraction of the width and height to each side. Of equal values the first in row order gets the gradient.
    A region with x2 < x1 is one cell wide and has a gradient, as in the fork's CPU code.
    """

    fork = forks.FAST_RCNN

    def read_size(self) -> None:
        self.grid = self.pooled_size(self.param.roi_pooling_param, "roi_pooling_param")
        self.pad_ratio = np.float32(self.param.roi_pooling_param.pad_ratio)
        self.cells = Blob(self.xp, (), channels_last=True, dtype="int64")  # index of each maximum in N * H * W, or -1

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.cells.reshape(*top[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, saves = channels_last(bottom[0].data), self.context.saves_for_backward
        images, *ends = self.read_regions(bottom)
        rows, columns = (
            self._bins(pair, bins, size) for pair, bins, size in zip(ends, self.grid, x.shape[1:3], strict=True)
        )
        table = _keys(self.xp, x) if saves else x
        best = self.xp.zeros((*top[0].shape[:1], *self.grid, x.shape[-1]), table.dtype)
        filled = (rows[1] > rows[0])[:, :, None] & (columns[1] > columns[0])[:, None, :]
        _maxima(self.engine, table, images, rows, columns, best)
        y, there = channels_last(top[0].data), self.engine.from_numpy(filled)[..., None]
        if saves:
            values, cells = _decoded(self.xp, best)
            channels_last(self.cells.data)[...] = self.xp.where(there, cells, -1)
            best = values
        y[...] = self.xp.where(there, best, 0)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [self.cells]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            dx, cells = channels_last(bottom[0].diff), channels_last(self.cells.data)
            count, channels = dx.size, dx.shape[-1]
            targets = cells * channels + self.xp.arange(channels)
            targets = self.xp.where(cells < 0, count, targets).reshape(-1)  # one more takes those of empty bins
            gradients = channels_last(top[0].diff).reshape(-1)
            sums = self.xp.bincount(targets, weights=gradients, minlength=count + 1)
            dx[...] = sums[:count].reshape(dx.shape)
        if propagate_down[1]:
            bottom[1].diff[...] = 0

    def _bins(self, ends: np.ndarray, bins: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(R, bins) each: the first cell of every bin, and the one behind its last, clipped to the map."""
        ends = _padded(ends, self.pad_ratio)
        first, last = _rounded(ends * self.scale).T[:, :, None]
        width = np.maximum(last - first + 1, 1).astype(np.float32) / np.float32(bins)
        start, end = _steps(bins) * width, (_steps(bins) + 1) * width
        return _clipped(np.floor(start) + first, size), _clipped(np.ceil(end) + first, size)


@register("PSROIPooling")
class PSROIPooling(RegionLayer):
    """top (R, output_dim, group_size, group_size) = the mean of each bin of each region, in maps of its own.

    The maps have output_dim * group_size^2 channels: bin (row, column) of output d reads channel
    (d * group_size + row) * group_size + column. Corners are rounded, then scaled. A bin outside the map gives 0. The
    sum over a bin is that of four values of a table of sums, so the work does not depend on the size of the regions.
    """

    fork = forks.RFCN

    def read_size(self) -> None:
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

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xp, x = self.xp, channels_last(bottom[0].data)
        table = xp.zeros(_table_shape(x), xp.float64)  # sums of all cells above and to the left
        xp.cumsum(xp.cumsum(x, axis=1, dtype=xp.float64), axis=2, out=table[:, 1:, 1:])
        corners, areas = self._corners(bottom)
        sums = sum(sign * table.reshape(-1)[cells] for sign, cells in corners)
        channels_last(top[0].data)[...] = sums / areas

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom[1:]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            xp, dx = self.xp, channels_last(bottom[0].diff)
            corners, areas = self._corners(bottom)
            shares, shape = channels_last(top[0].diff) / areas, _table_shape(dx)
            steps = sum(
                sign * xp.bincount(cells.reshape(-1), weights=shares.reshape(-1), minlength=math.prod(shape))
                for sign, cells in corners
            ).reshape(shape)  # from cell to cell of the gradient
            dx[...] = xp.cumsum(xp.cumsum(steps, axis=1), axis=2)[:, :-1, :-1]
        if propagate_down[1]:
            bottom[1].diff[...] = 0

    def _corners(self, bottom: list[Blob]) -> tuple[list[tuple[int, Array]], Array]:
        """Of each bin (R, group_size, group_size, output_dim) the indices of its corners in the table, each with the
        sign of its sum, and the number of its cells, at least 1."""
        _, height, width, channels = _table_shape(channels_last(bottom[0].data))
        images, *ends = self.read_regions(bottom)
        group, upload = self.grid[0], self.engine.from_numpy
        (top, below), (left, right) = (
            self._bins(pair, size - 1) for pair, size in zip(ends, (height, width), strict=True)
        )
        channel = upload(np.arange(channels).reshape(-1, group, group).transpose(1, 2, 0))
        corners = []
        for sign, row, column in ((1, below, right), (-1, top, right), (-1, below, left), (1, top, left)):
            cells = (images[:, None, None] * height + row[:, :, None]) * width + column[:, None, :]
            corners.append((sign, upload(cells)[..., None] * channels + channel))
        areas = (below - top)[:, :, None] * (right - left)[:, None, :]
        return corners, upload(np.maximum(areas, 1).astype(np.float64))[..., None]

    def _bins(self, ends: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(R, group_size) each: the first cell of every bin, and the one behind its last, clipped to the map."""
        bins = self.grid[0]
        start, end = ((_rounded(ends) + np.array([0, 1])).astype(np.float32) * self.scale).T[:, :, None]
        width = np.maximum(end - start, np.float32(0.1)) / np.float32(bins)
        first = _clipped(np.floor(_steps(bins) * width + start), size)
        return first, np.maximum(_clipped(np.ceil((_steps(bins) + 1) * width + start), size), first)


class WeightedSums(RegionLayer):
    """Base of both kinds of ROIAlign: sums of the maps, weighted along rows and along columns."""

    def weights(self, bottom: list[Blob]) -> tuple[np.ndarray, Array, Array]:
        """Image indices (R,), weights of rows (R, grid rows, H), weights of columns (R, grid columns, W)."""
        images, *ends = self.read_regions(bottom)
        pairs = zip(ends, self.grid, bottom[0].shape[2:], strict=True)
        rows, columns = (self.engine.from_numpy(self.axis_weights(*pair).astype(np.float32)) for pair in pairs)
        return images, rows, columns

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        """(R, bins, size): the weight of each cell along one axis, from the ends (R, 2) of the regions."""
        raise NotImplementedError

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        _weighted_sums(self.xp, channels_last(bottom[0].data), *self.weights(bottom), channels_last(top[0].data))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom[1:]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            _spread_sums(self.xp, channels_last(top[0].diff), *self.weights(bottom), channels_last(bottom[0].diff))
        if propagate_down[1]:
            bottom[1].diff[...] = 0


class ROIAlignCorners(WeightedSums):
    """top (R, C, pooled_h + 1, pooled_w + 1) = bilinear samples at the corners of the bins.

    A Pooling of kernel 2 and stride 1 is meant to follow. Half a cell is subtracted after scaling. Samples more than
    half a cell outside the map are 0, as are regions without area. `pad_ratio` is as in ROIPooling.
    """

    fork = forks.MSCNN

    def read_size(self) -> None:
        self.pooled = self.pooled_size(self.param.roi_pooling_param, "roi_pooling_param")
        self.grid = (self.pooled[0] + 1, self.pooled[1] + 1)
        self.pad_ratio = np.float32(self.param.roi_pooling_param.pad_ratio)

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        start, end = (_padded(ends, self.pad_ratio) * self.scale - np.float32(0.5)).T[:, :, None]
        samples = start + _steps(bins) * ((end - start) / np.float32(bins - 1))
        inside = (end > start) & (samples >= -0.5) & (samples <= size - 0.5)
        return _bilinear(samples, size) * inside[..., None]


class ROIAlignMean(WeightedSums):
    """top (R, C, pooled_h, pooled_w) = the mean of bilinear samples that lie evenly in each bin (He et al. 2017).

    `sampling_ratio` is the number of samples per bin and axis; without it, or with 0 or less, the cells per bin,
    rounded up. Regions are at least one cell wide. Samples more than a cell outside the map are 0.
    """

    fork = forks.MASK_RCNN

    def read_size(self) -> None:
        self.grid = self.pooled_size(self.param.roi_align_param, "roi_align_param")
        if self.param.roi_align_param.sampling_ratio > MOST_SAMPLES:
            raise self.error(f"sampling_ratio must be at most {MOST_SAMPLES}")

    def axis_weights(self, ends: np.ndarray, bins: int, size: int) -> np.ndarray:
        start, end = (ends * self.scale).T[:, :, None, None]
        width = np.maximum(end - start, 1) / np.float32(bins)
        ratio = self.param.roi_align_param.sampling_ratio
        counts = np.full_like(width, ratio) if ratio > 0 else np.minimum(np.ceil(width), MOST_SAMPLES)
        steps = np.arange(counts.max(initial=1), dtype=np.float32)
        samples = start + (_steps(bins)[:, None] + (steps + np.float32(0.5)) / counts) * width
        inside = (steps < counts) & (samples >= -1) & (samples <= size)
        return (_bilinear(samples, size) * (inside / counts)[..., None]).sum(axis=2)


@register("ROIAlign")
def roi_align(param: Any, context: Context) -> Layer:
    """MS-CNN's layer, which reads roi_pooling_param, or Mask R-CNN's, which reads roi_align_param."""
    kind = ROIAlignMean if param.HasField("roi_align_param") else ROIAlignCorners
    return kind(param, context)


def _padded(ends: np.ndarray, ratio: np.float32) -> np.ndarray:
    """The ends (R, 2) of regions moved outwards by this fraction of their size."""
    pad = (ends[:, 1:] - ends[:, :1] + 1) * ratio
    return np.concatenate([ends[:, :1] - pad, ends[:, 1:] + pad], axis=1)


def _rounded(values: np.ndarray) -> np.ndarray:
    """To whole numbers, halves away from zero, in float64."""
    return np.copysign(np.floor(np.abs(values.astype(np.float64)) + 0.5), values)


def _steps(bins: int) -> np.ndarray:
    return np.arange(bins, dtype=np.float32)


def _clipped(cells: np.ndarray, size: int) -> np.ndarray:
    return np.clip(cells, 0, size).astype(np.int64)


def _bilinear(samples: np.ndarray, size: int) -> np.ndarray:
    """(..., size): the weight of each cell in a bilinear sample at these coordinates, clamped to the map."""
    samples = np.clip(samples.astype(np.float64), 0, size - 1)[..., None]
    return np.maximum(0, 1 - np.abs(samples - np.arange(size)))


def _keys(xp: Any, x: Array) -> Array:
    """int64 keys of x (N, H, W, C), ordered like its values. Of equal values that with the lowest index is the largest.

    The upper bits have the bits of the value, negated where negative. The lower ones have the complement of the index
    in N * H * W. NaN counts as the lowest value.
    """
    values = xp.ascontiguousarray(xp.fmax(x, LOWEST) + xp.float32(0))  # 0 for -0
    bits = values.view(xp.int32).astype(xp.int64)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    cells = xp.arange(values.size // values.shape[-1]).reshape(*values.shape[:-1], 1)
    return (bits << INDEX_BITS) | (INDEX_MASK - cells)


def _decoded(xp: Any, keys: Array) -> tuple[Array, Array]:
    """The values and the indices of keys."""
    bits = keys >> INDEX_BITS
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return bits.astype(xp.int32).view(xp.float32), INDEX_MASK - (keys & INDEX_MASK)


def _maxima(
    engine: Any,
    table: Array,
    images: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
    columns: tuple[np.ndarray, np.ndarray],
    best: Array,
) -> None:
    """best (R, P, Q, C) = the maxima of `table` (N, H, W, C) over the bins; those of empty bins stay.

    A rectangle is the union of four squares of cells (more exactly, of sides that are powers of two) that may overlap,
    so the maxima over all such rectangles of one shape serve every bin of similar shape, however large.
    """
    xp = engine.xp
    heights, widths = (np.frexp(end - start)[1] - 1 for start, end in (rows, columns))  # log2 of the sides; -1: empty
    for height in range(int(heights.max(initial=-1)) + 1):
        if height:
            table = _joined(xp, table, 1, 1 << (height - 1))
        wider = table
        for width in range(int(widths.max(initial=-1)) + 1):
            if width:
                wider = _joined(xp, wider, 2, 1 << (width - 1))
            region, row, column = np.nonzero((heights == height)[:, :, None] & (widths == width)[:, None, :])
            if not len(region):
                continue
            tops = (rows[0][region, row], rows[1][region, row] - (1 << height))
            lefts = (columns[0][region, column], columns[1][region, column] - (1 << width))
            corners = [[images[region], top, left] for top in tops for left in lefts]
            found = [wider[tuple(map(engine.from_numpy, corner))] for corner in corners]
            targets = tuple(map(engine.from_numpy, (region, row, column)))
            best[targets] = xp.maximum(xp.maximum(found[0], found[1]), xp.maximum(found[2], found[3]))


def _joined(xp: Any, table: Array, axis: int, step: int) -> Array:
    """The maxima of all pairs with a distance of `step` along the axis."""
    before = (slice(None),) * axis
    parts = ((*before, slice(-step)), (*before, slice(step, None)))
    return xp.maximum(*(table[part] for part in parts))


def _table_shape(x: Array) -> tuple[int, int, int, int]:
    """Of the sums over the rectangles of x (N, H, W, C) that begin at its first cell."""
    images, height, width, channels = x.shape
    return images, height + 1, width + 1, channels


def _weighted_sums(xp: Any, x: Array, images: np.ndarray, rows: Array, columns: Array, y: Array) -> None:
    """y (R, P, Q, C) = sum over cells of rows (R, P, H) * columns (R, Q, W) * x (N, H, W, C) of the region's image."""
    _, height, width, channels = x.shape
    for image in range(x.shape[0]):
        members = xp.asarray(np.flatnonzero(images == image))
        if members.size:
            along = rows[members].reshape(-1, height) @ x[image].reshape(height, -1)
            along = along.reshape(members.size, -1, width, channels)
            y[members] = xp.matmul(columns[members][:, None], along)


def _spread_sums(xp: Any, dy: Array, images: np.ndarray, rows: Array, columns: Array, dx: Array) -> None:
    """The gradient of _weighted_sums: writes all of dx."""
    _, height, width, channels = dx.shape
    for image in range(dx.shape[0]):
        members = xp.asarray(np.flatnonzero(images == image))
        if not members.size:
            dx[image] = 0
            continue
        along = xp.matmul(columns[members].transpose(0, 2, 1)[:, None], dy[members])
        share = rows[members].reshape(-1, height).T @ along.reshape(-1, width * channels)
        dx[image] = share.reshape(height, width, channels)
