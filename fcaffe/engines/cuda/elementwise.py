"""Elementwise operators, Dropout and biases, by kernels that read and write memory once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import CPP_TYPES, FLOATS, MOST_BLOCKS, THREADS, Kernels, blocks_for
from fcaffe.engines.cuda.operands import BYTES, NULL, is_flat, pack_of, rows_of_channels
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.memory import Array

SOURCE = "elementwise"


class Elementwise(PlainElementwise):
    """Kernels for float32, float16 and bfloat16 arrays of one memory order. Array code computes on others.

    Dropout's masks are 1 where a value is kept. The host draws noise of the kind 'caffe'.
    """

    kernels: Kernels
    counters: Array  # uint64 (4,): see set_counters; on the device, so that recorded passes read new values
    mask_dtype = "uint8"

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        if _is_fast(x, y):
            self._map("relu_forward", (x.dtype,), x, x, y, np.float32(slope))
        else:
            super().relu_forward(x, y, slope)

    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        if _is_fast(y, dy, dx):
            self._map("relu_backward", (y.dtype,), y, y, dy, dx, np.float32(slope))
        else:
            super().relu_backward(y, dy, dx, slope)

    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        if not _is_fast(*arrays, y):
            super().weighted_sum(arrays, factors, y)
            return
        if len(arrays) > 2:
            self.weighted_sum(arrays[:2], factors[:2], y)
            self.weighted_sum([y, *arrays[2:]], [1, *factors[2:]], y)
            return
        terms = [term for array, factor in zip(arrays, factors, strict=True) for term in (array, np.float32(factor))]
        terms += [NULL, np.float32(0)] * (2 - len(arrays))
        self._map("weighted_sum", (y.dtype, len(arrays) == 2), y, *terms, y)

    def draw_mask(self, mask: Array, noise: Any, ratio: float, scale: float) -> None:
        if noise.by_host:
            mask[...] = self.from_numpy(noise.keep_mask(mask.shape, ratio))
            return
        drawn = self.xp.empty(mask.shape, mask.dtype)  # the stream numbers its words in C order
        rows, size = math.prod(mask.shape[:1]), math.prod(mask.shape[1:])
        first = map(np.uint64, noise.first_row(rows))
        arguments = self.counters, *noise.philox_key, noise.keep_limit(ratio), *first, np.int64(rows), np.int64(size)
        self.kernels.launch("noise", "draw_mask", (), blocks_for(rows * -(-size // 8)), THREADS, drawn, *arguments)
        mask[...] = drawn

    def apply_mask(self, x: Array, mask: Array, y: Array, scale: float) -> None:
        source, target = x, y
        if x.dtype != y.dtype or not is_flat(x, mask, y):
            source, target = (self.xp.empty_like(mask, dtype=y.dtype) for _ in range(2))
            self.copy(x, source)
        blocks, numbers = blocks_for(mask.size, per_thread=8), (np.float32(scale), np.int64(mask.size))
        self.kernels.launch("noise", "apply_mask", (y.dtype,), blocks, THREADS, source, mask, target, *numbers)
        if target is not y:
            self.copy(target, y)

    def _map(self, kernel: str, types: tuple[Any, ...], like: Array, *args: Any) -> None:
        self.kernels.launch(SOURCE, kernel, types, _blocks(like), THREADS, *args, np.int64(like.size))

    def copy(self, x: Array, y: Array) -> None:
        """y = x, of one shape. The kernel also converts types."""
        if not (_is_float(x) and _is_float(y) and is_flat(x, y)):
            super().copy(*_in_words(x, y))
            return
        wide = y if y.dtype.itemsize > x.dtype.itemsize else x
        self.kernels.launch(SOURCE, "copy", (x.dtype, y.dtype), _blocks(wide), THREADS, x, y, np.int64(x.size))

    def add_bias(self, y: Array, bias: Array, relu: bool = False) -> None:
        rows = rows_of_channels(y)
        if rows is None or not _is_float(y) or not _is_vector(bias):
            super().add_bias(y, bias, relu)
            return
        pack, grid, block = _by_channel(*rows, y)
        numbers = np.int64(rows[0]), np.int32(rows[1]), np.int32(relu)
        self.kernels.launch(SOURCE, "add_bias", (y.dtype, pack), grid, block, y, bias, *numbers)

    def bias_backward(self, dy: Array, dbias: Array, add: bool) -> None:
        if rows_of_channels(dy) and _is_float(dy) and _is_vector(dbias):
            self._sum_by_channel(dy, dbias, add)
        else:
            super().bias_backward(dy, dbias, add)

    def channel_sums(self, x: Array) -> Array:
        if not (rows_of_channels(x) and _is_float(x)):
            return super().channel_sums(x)
        sums = self.xp.empty(x.shape[1], np.float32)
        self._sum_by_channel(x, sums, add=False)
        return sums

    def _sum_by_channel(self, dy: Array, dbias: Array, add: bool) -> None:
        """Sum in two steps, so that the order of the additions is always the same."""
        rows, channels = rows_of_channels(dy)  # type: ignore[misc] # the caller has checked that it is not None
        pack, grid, block = _by_channel(rows, channels, dy)
        partials = self.xp.empty((grid[0], channels), np.float32)
        sizes = np.int64(rows), np.int32(channels)
        self.kernels.launch(SOURCE, "bias_partials", (dy.dtype, pack), grid, block, dy, partials, *sizes)
        finish_sums(self.kernels, partials, dbias, NULL, add)


def finish_sums(kernels: Kernels, partials: Array, first: Array, second: Array, add: bool) -> None:
    """Add up partial sums (parts, columns): those of the first columns into one array, the others into the second."""
    parts, columns = partials.shape
    numbers = map(np.int32, (first.size, parts, columns, add))
    kernels.launch(SOURCE, "finish_sums", (), -(-columns // 32), (32, 32), partials, first, second, *numbers)


def _by_channel(rows: int, channels: int, array: Array) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Channels of a pack, grid and block shape for kernels that loop over rows; blocks have powers of two as sides."""
    pack = pack_of(channels, array)
    packs = channels // pack
    width = min(32, 1 << (packs - 1).bit_length())
    height = THREADS // width
    across = -(-packs // width)
    down = min(-(-rows // height), max(1, MOST_BLOCKS // 4 // across))
    return pack, (down, across), (width, height)


def _blocks(array: Array) -> int:
    """Number of blocks if each thread takes 16 bytes at a time."""
    return blocks_for(-(-array.nbytes // 16))


def _in_words(*arrays: Array) -> Sequence[Array]:
    """The two arrays as words of 16 bytes, if both have whole ones along axis 1. CuPy copies one value a thread."""
    last = [array.swapaxes(1, -1) for array in arrays if array.ndim > 1 and array.size]
    lengths = [n for a in last for n in (a.data.ptr, a.shape[-1] * a.itemsize, *a.strides[:-1])]
    if (
        len({a.dtype for a in last}) != 1
        or any(a.strides[-1] != a.itemsize for a in last)
        or any(np.mod(lengths, BYTES))
    ):
        return arrays
    return [a.view(np.complex128) for a in last]


def _is_float(array: Array) -> bool:
    return CPP_TYPES.get(array.dtype.name) in FLOATS


def _is_fast(*arrays: Array) -> bool:
    return _is_float(arrays[0]) and len({array.dtype for array in arrays}) == 1 and is_flat(*arrays)


def _is_vector(array: Array) -> bool:
    """Whether it is a dense float32 array of one axis, as a bias and its gradient are."""
    return array.dtype == np.float32 and array.ndim == 1 and array.flags.c_contiguous
