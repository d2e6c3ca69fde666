"""Pooling over windows that may be clipped by, or lie outside, the image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from fcaffe.engines.channels import channels_last
from fcaffe.engines.elementwise import FLT_MAX, FLT_MIN, PlainElementwise
from fcaffe.engines.memory import Array
from fcaffe.engines.windows import Windows, add_windows, pad_channels_last

Label = Callable[[tuple[int, ...]], Any]  # of an element of the windows, one number or one for each window


class PlainPooling(PlainElementwise):
    """x (N, C, spatial...), y (N, C, output_size...). `mask` (N, C, output_size...) holds the index of each
    maximum in its plane, the spatial axes of one channel. A mask of float32 is exact up to 2^24 only, as in Caffe.

    `memory`, of y's shape and type `pool_memory`, is what max_pool_forward saves for max_pool_backward; each engine
    chooses its contents.
    """

    def pool_memory(self, windows: Windows) -> str:
        """The dtype of `memory`."""
        return "uint8" if windows.size < 256 else "int32"

    def max_pool_forward(self, x: Array, y: Array, memory: Array | None, windows: Windows) -> None:
        """y = the largest values; -FLT_MAX where no element is inside. `memory` None: there is no backward pass."""
        if memory is None:
            memory = self.xp.empty_like(y, dtype=self.pool_memory(windows))
        numbers = itertools.count(1)
        self._max_pool(x, y, memory, windows, lambda offset: next(numbers))

    def max_pool_backward(self, dy: Array, memory: Array, dx: Array, windows: Windows) -> None:
        """dx = each dy at its maximum; the gradients of windows with the same maximum add up."""
        numbers = itertools.count(1)
        self._to_maxima(dy, memory, dx, windows, lambda offset: next(numbers))

    def max_pool_with_indices(self, x: Array, y: Array, mask: Array, windows: Windows) -> None:
        """y = the first of the largest values in row order; mask -1 and y -FLT_MAX where no element is inside."""
        index = self._plane_indices(y.shape[2:], x.shape[2:], windows, mask.dtype)
        self._max_pool(x, y, mask, windows, lambda offset: index(offset) + 1)
        mask -= 1

    def index_backward(self, dy: Array, mask: Array, dx: Array, windows: Windows) -> None:
        """dx = each dy at the index that `mask` holds for its window; gradients at the same index add up."""
        self._to_maxima(dy, mask, dx, windows, self._plane_indices(dy.shape[2:], dx.shape[2:], windows, mask.dtype))

    def _max_pool(self, x: Array, y: Array, mask: Array, windows: Windows, label: Label) -> None:
        """mask = the label of each maximum, from 1 on; 0 where no element is inside."""
        best, where = channels_last(y), channels_last(mask)
        output_size = best.shape[1:-1]
        padded = pad_channels_last(self.xp, channels_last(x), windows, output_size, -FLT_MAX)
        best[...] = -FLT_MAX
        where[...] = 0
        for offset in windows.offsets():
            element = padded[windows.shifted(offset, output_size)]
            larger = element > best
            self.xp.fmax(best, element, out=best)  # a NaN is never larger
            # Offsets come in row order, so the newest label of a window is also its highest.
            self.xp.maximum(where, larger.astype(where.dtype) * label(offset), out=where)

    def _to_maxima(self, dy: Array, mask: Array, dx: Array, windows: Windows, label: Label) -> None:
        dy, where, out = channels_last(dy), channels_last(mask), channels_last(dx)

        def part(offset: tuple[int, ...]) -> Array:
            return self.xp.where(where == label(offset), dy, 0)

        add_windows(self.xp, out, windows, dy.shape[1:-1], part)

    def scatter_to_plane(self, dy: Array, mask: Array, dx: Array) -> None:
        """dx = dy added up at the indices in `mask`; indices outside the plane are ignored."""
        count, windows, size = dx.shape[0] * dx.shape[1], math.prod(dy.shape[2:]), math.prod(dx.shape[2:])
        planes = self.xp.zeros((count, size + 1), dx.dtype)  # the last value takes the ignored ones
        rows = self.xp.arange(count)[:, None]
        where = mask.reshape(count, windows).astype(self.xp.int64)
        where = self.xp.where((where >= 0) & (where < size), where, size)
        self.xp.add.at(planes, (rows, where), dy.reshape(count, windows))
        dx[...] = planes[:, :size].reshape(dx.shape)

    def average_pool_forward(self, x: Array, y: Array, windows: Windows) -> None:
        """y = the window's sum over its area. Padding counts as area; positions beyond the padding do not."""
        out = channels_last(y)
        output_size = out.shape[1:-1]
        padded = pad_channels_last(self.xp, channels_last(x), windows, output_size)
        out[...] = 0
        for offset in windows.offsets():
            out += padded[windows.shifted(offset, output_size)]
        areas = windows.areas(self.xp, x.shape[2:], output_size)
        out /= areas[..., None]  # a window outside the image is 0 / 0, as in Caffe

    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
        """dx = each dy, divided by its window's area, at every element of the window."""
        dy, out = channels_last(dy), channels_last(dx)
        output_size = dy.shape[1:-1]
        share = dy / windows.areas(self.xp, out.shape[1:-1], output_size)[..., None]
        add_windows(self.xp, out, windows, output_size, lambda offset: share)

    def stochastic_pool_forward(self, x: Array, y: Array, mask: Array, dice: Array, windows: Windows) -> None:
        """Zeiler and Fergus: pick an element with probability in proportion to its value, by `dice` in [0, 1)."""
        best, where = channels_last(y), channels_last(mask)
        output_size = best.shape[1:-1]
        padded = pad_channels_last(self.xp, channels_last(x), windows, output_size)
        total = sum(padded[windows.shifted(offset, output_size)] for offset in windows.offsets())
        threshold = channels_last(dice) * total
        where[...] = -1
        best[...] = 0
        running = self.xp.zeros_like(best)
        index_of = self._plane_indices(output_size, x.shape[2:], windows, where.dtype)
        for offset in windows.offsets():
            element = padded[windows.shifted(offset, output_size)]
            running += element
            index = index_of(offset)
            picked = (where < 0) & (running >= threshold) & (index >= 0)
            self.xp.copyto(best, element, where=picked)
            self.xp.copyto(where, index, where=picked)

    def stochastic_pool_test(self, x: Array, y: Array, windows: Windows) -> None:
        """The expectation of the above: sum of squares over sum."""
        out = channels_last(y)
        output_size = out.shape[1:-1]
        padded = pad_channels_last(self.xp, channels_last(x), windows, output_size)
        squares = self.xp.zeros_like(out)
        total = self.xp.full_like(out, FLT_MIN)  # an all-zero window gives 0
        for offset in windows.offsets():
            element = padded[windows.shifted(offset, output_size)]
            squares += element * element
            total += element
        out[...] = squares / total

    def _plane_indices(
        self, output_size: tuple[int, ...], size: tuple[int, ...], windows: Windows, dtype: Any
    ) -> Label:
        """Labels (output_size..., 1): the index in the plane of an element of every window; -1 outside the plane."""

        def index_of(offset: tuple[int, ...]) -> Array:
            index = self.xp.zeros((), "int64")
            for o, n, s, p, e in zip(output_size, size, windows.stride, windows.pad, offset, strict=True):
                index, along = index[..., None], self.xp.arange(o) * s - p + e
                index = self.xp.where((index >= 0) & (along >= 0) & (along < n), index * n + along, -1)
            return index[..., None].astype(dtype)

        return index_of
