"""Convolutions in blocks of tiles, whose transformed values stay in a core's cache between transform and product.

Arrays are float32 in C order: x (N, H, W, C), y (N, rows, columns, K), kernels (K, C, 3, 3), transformed kernels
(36, C, K). C and K are at least CHANNELS. Tiles are numbered by image, then row, then column. `pad` is the padding
above and to the left of x; what a tile needs beyond x is 0. Loops take CHANNELS channels at a time. If their number is
no multiple of that, some channels are computed twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from fcaffe.engines.winograd.compiling import compiled, inlined, parallel
from fcaffe.engines.winograd.intrinsics import copy, product
from fcaffe.engines.winograd.transforms import (
    CHANNELS,
    IN,
    KERNEL,
    OUT,
    gradient_axis,
    input_axis,
    kernel_axis,
    kernel_gradient_axis,
    output_axis,
)

TOGETHER = 64  # tiles of a block: their transformed values and products fit a core's cache
ROOM = TOGETHER + 1  # tiles of an array: with a power of 2 the 36 matrices would lie in the same lines of a cache
VALUES = IN * IN  # of a transformed tile
ROW = IN * CHANNELS  # values of a row of a tile of CHANNELS channels
WORK = 2, VALUES * CHANNELS  # shape of a tile, and of one that is transformed along one axis

Array = Any
Pair = tuple[int, int]


@parallel
def convolve(
    x: Array, kernels: Array, bias: Array, plus: Array, relu: bool, y: Array, pad: Pair, threads: int, sgemm: int
) -> None:
    """y = the convolution of x, plus `bias` (K,) and the array `plus` of y's shape unless these are empty, after ReLU
    if asked for. `sgemm`: the address of oneDNN's product of matrices.

    Each thread computes as many blocks. All threads share the tiles and the products of the blocks that remain.
    """
    channels, outputs = x.shape[3], y.shape[3]
    number = tiles(y)
    blocks = (number + TOGETHER - 1) // TOGETHER
    separate = blocks // threads * threads
    for thread in prange(threads):
        work = np.empty(WORK, np.float32)
        transformed = np.empty((VALUES, ROOM, channels), np.float32)
        products = np.empty((VALUES, ROOM, outputs), np.float32)
        for block in range(separate * thread // threads, separate * (thread + 1) // threads):
            first, end = block * TOGETHER, min(number, (block + 1) * TOGETHER)
            transform_tiles(x, y, pad, IN, first, end, transformed, first, work)
            for value in range(VALUES):
                product(sgemm, False, transformed[value], kernels[value], products[value], end - first, False)
            transform_outputs(products, bias, plus, relu, y, first, end, first, work)
    shared = np.empty((VALUES, ROOM, channels), np.float32)
    shared_products = np.empty((VALUES, ROOM, outputs), np.float32)
    for block in range(separate, blocks):
        first, end = block * TOGETHER, min(number, (block + 1) * TOGETHER)
        for thread in prange(threads):
            work = np.empty(WORK, np.float32)
            begin, stop = share(first, end, thread, threads)
            transform_tiles(x, y, pad, IN, begin, stop, shared, first, work)
        for value in prange(VALUES):
            product(sgemm, False, shared[value], kernels[value], shared_products[value], end - first, False)
        for thread in prange(threads):
            work = np.empty(WORK, np.float32)
            begin, stop = share(first, end, thread, threads)
            transform_outputs(shared_products, bias, plus, relu, y, begin, stop, first, work)


@parallel
def kernel_gradient(x: Array, dy: Array, gradient: Array, pad: Pair, threads: int, sgemm: int) -> None:
    """gradient (36, C, K) = the gradient of the transformed kernels. The order of its sums does not depend on the
    number of threads: these share each block's tiles, and then its 36 products."""
    number = tiles(dy)
    inputs = np.empty((VALUES, ROOM, x.shape[3]), np.float32)
    outputs = np.empty((VALUES, ROOM, dy.shape[3]), np.float32)
    for block in range((number + TOGETHER - 1) // TOGETHER):
        first, end = block * TOGETHER, min(number, (block + 1) * TOGETHER)
        for thread in prange(threads):
            work = np.empty(WORK, np.float32)
            begin, stop = share(first, end, thread, threads)
            transform_tiles(x, dy, pad, IN, begin, stop, inputs, first, work)
            transform_tiles(dy, dy, (0, 0), OUT, begin, stop, outputs, first, work)
        for value in prange(VALUES):
            product(sgemm, True, inputs[value], outputs[value], gradient[value], end - first, block > 0)


@inlined
def share(first: int, end: int, thread: int, threads: int) -> tuple[int, int]:
    """The part of the numbers `first` to `end` that a thread takes."""
    return first + (end - first) * thread // threads, first + (end - first) * (thread + 1) // threads


@inlined
def tiles(y: Array) -> int:
    """How many tiles make up the output."""
    return y.shape[0] * ((y.shape[1] + OUT - 1) // OUT) * ((y.shape[2] + OUT - 1) // OUT)


@inlined
def corner(y: Array, tile: int) -> tuple[int, int, int]:
    """Image, row and column in y of the tile's first pixel."""
    columns = (y.shape[2] + OUT - 1) // OUT
    rows = (y.shape[1] + OUT - 1) // OUT
    return tile // (rows * columns), tile // columns % rows * OUT, tile % columns * OUT


@inlined
def pixel(x: Array, image: int, row: int, column: int) -> int:
    """The offset of this pixel's first channel."""
    return ((image * x.shape[1] + row) * x.shape[2] + column) * x.shape[3]


@compiled
def transform_tiles(
    x: Array, y: Array, pad: Pair, size: int, first: int, end: int, target: Array, origin: int, work: Array
) -> None:
    """Transform the tiles `first` to `end` of x into target (36, tiles, C), in which the tile `origin` comes first.

    With `size` IN they are input tiles d, of which target gets B^T d B; with OUT they are tiles dY of the output's
    gradient, of which it gets A dY A^T. y is the output, whose tiles are numbered.
    """
    tile, half = work[0], work[1]
    for number in range(first, end):
        image, row, column = corner(y, number)
        for begin in range(0, x.shape[3], CHANNELS):
            channel = min(begin, x.shape[3] - CHANNELS)
            load(x, image, row - pad[0], column - pad[1], channel, size, tile)
            for i in range(size):
                if size == IN:
                    input_axis(tile, i * CHANNELS, ROW, half, i * CHANNELS, ROW)
                else:
                    gradient_axis(tile, i * CHANNELS, ROW, half, i * CHANNELS, ROW)
            for i in range(IN):
                if size == IN:
                    input_axis(half, i * ROW, CHANNELS, tile, i * ROW, CHANNELS)
                else:
                    gradient_axis(half, i * ROW, CHANNELS, tile, i * ROW, CHANNELS)
            store(tile, target, number - origin, channel)


@compiled
def load(x: Array, image: int, row: int, column: int, channel: int, size: int, tile: Array) -> None:
    """Copy size x size pixels of x from this row and column on into the tile, whose rows have room for IN pixels."""
    for i in range(size):
        for j in range(size):
            to = i * ROW + j * CHANNELS
            if 0 <= row + i < x.shape[1] and 0 <= column + j < x.shape[2]:
                copy(x, pixel(x, image, row + i, column + j) + channel, tile, to)
            else:
                tile[to : to + CHANNELS] = 0


@compiled
def store(tile: Array, target: Array, index: int, channel: int) -> None:
    """Copy the 36 values of a transformed tile into `target`."""
    for value in range(VALUES):
        copy(tile, value * CHANNELS, target, (value * target.shape[1] + index) * target.shape[2] + channel)


@compiled
def transform_outputs(
    products: Array, bias: Array, plus: Array, relu: bool, y: Array, first: int, end: int, origin: int, work: Array
) -> None:
    """y = A^T m A of the tiles `first` to `end`, plus `bias` and `plus`, after ReLU. The tile `origin` comes first in
    m, the products (36, tiles, K)."""
    tile, half = work[0], work[1]
    for number in range(first, end):
        image, row, column = corner(y, number)
        for begin in range(0, y.shape[3], CHANNELS):
            channel = min(begin, y.shape[3] - CHANNELS)
            for value in range(VALUES):
                copy(products, (value * ROOM + number - origin) * y.shape[3] + channel, tile, value * CHANNELS)
            for i in range(IN):
                output_axis(tile, i * CHANNELS, ROW, half, i * CHANNELS, ROW)
            for i in range(OUT):
                output_axis(half, i * ROW, CHANNELS, tile, i * ROW, CHANNELS)
            for i in range(min(OUT, y.shape[1] - row)):
                for j in range(min(OUT, y.shape[2] - column)):
                    value = i * ROW + j * CHANNELS
                    to = pixel(y, image, row + i, column + j) + channel
                    if plus.size:
                        copy(plus, to, half, 0)
                        for c in range(CHANNELS):
                            tile[value + c] += half[c]
                    if bias.size:
                        for c in range(CHANNELS):
                            tile[value + c] += bias[channel + c]
                    if relu:
                        for c in range(CHANNELS):
                            tile[value + c] = np.float32(0) if tile[value + c] < 0 else tile[value + c]
                    copy(tile, value, y, to)


@parallel
def transform_kernels(weights: Array, turned: bool, target: Array, threads: int) -> None:
    """target (36, C, K) = G g G^T of the kernels g; or (36, K, C) of the kernels turned by 180 degrees, with which the
    gradient of the input is a convolution."""
    rows, columns = target.shape[1], target.shape[2]
    for thread in prange(threads):
        work = np.empty(WORK, np.float32)
        tile, half = work[0], work[1]
        for begin in range(0, columns, CHANNELS):
            column = min(begin, columns - CHANNELS)
            for row in range(rows * thread // threads, rows * (thread + 1) // threads):
                for c in range(CHANNELS):
                    kernel = weights[row, column + c] if turned else weights[column + c, row]
                    for i in range(KERNEL):
                        for j in range(KERNEL):
                            value = kernel[2 - i, 2 - j] if turned else kernel[i, j]
                            tile[i * ROW + j * CHANNELS + c] = value
                for i in range(KERNEL):
                    kernel_axis(tile, i * CHANNELS, ROW, half, i * CHANNELS, ROW)
                for i in range(IN):
                    kernel_axis(half, i * ROW, CHANNELS, tile, i * ROW, CHANNELS)
                store(tile, target, row, column)


@parallel
def gradient_of_kernels(transformed: Array, add: bool, gradient: Array, threads: int) -> None:
    """gradient (K, C, 3, 3) = G^T t G of the gradient t (36, C, K) of the transformed kernels, or plus that."""
    rows, columns = transformed.shape[1], transformed.shape[2]
    for thread in prange(threads):
        work = np.empty(WORK, np.float32)
        tile, half = work[0], work[1]
        for begin in range(0, columns, CHANNELS):
            column = min(begin, columns - CHANNELS)
            for row in range(rows * thread // threads, rows * (thread + 1) // threads):
                for value in range(VALUES):
                    copy(transformed, (value * rows + row) * columns + column, tile, value * CHANNELS)
                for i in range(IN):
                    kernel_gradient_axis(tile, i * CHANNELS, ROW, half, i * CHANNELS, ROW)
                for i in range(KERNEL):
                    kernel_gradient_axis(half, i * ROW, CHANNELS, tile, i * ROW, CHANNELS)
                for c in range(begin - column, CHANNELS):
                    kernel = gradient[column + c, row]
                    for i in range(KERNEL):
                        for j in range(KERNEL):
                            value = tile[i * ROW + j * CHANNELS + c]
                            kernel[i, j] = kernel[i, j] + value if add else value
