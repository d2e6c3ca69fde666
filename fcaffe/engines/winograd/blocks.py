"""Convolution in blocks of tiles: the transformed values of a block stay in the caches until their product.

All arrays are float32. x (N, C, H, W) and y (N, K, rows, columns) are channels-last arrays, or slices of their
channels. Kernels (K, C, kernel, kernel) and transformed kernels (36, lines, CHANNELS) are in C order. Transformed
kernels consist of panels of C lines, and a panel has CHANNELS outputs. Tiles are numbered by image, then row, then
column. `pad` is the padding above and to the left of x. Pixels outside of x are 0.

Loops process CHANNELS channels at a time. The last of these vectors overlaps the one before if the number of channels
is no multiple. Rows have an odd number of vectors, and matrices an odd number of lines. So the 36 values of a tile lie
in different sets of the cache.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from fcaffe.engines.memory import Array
from fcaffe.engines.winograd.compiling import compiled, inlined, parallel
from fcaffe.engines.winograd.transforms import B_T, CHANNELS, IN, KERNELS, of_kernel, of_output
from fcaffe.engines.winograd.vectors import FEW_ROWS, ROWS, add, copy, fetch, multiply, multiply_few, tile_transform

BLOCK_TILES = 144  # a multiple of ROWS; fewer tiles read the kernels more often, more leave the caches
SEPARATE_TILES = 48  # tiles per thread from which on each thread has its own blocks, and reads all kernels
VALUES = IN * IN  # of a transformed tile
ROW = IN * CHANNELS  # values of a row of a tile of CHANNELS channels
WORK = VALUES * CHANNELS
NO_BOUND = np.float32(-np.inf)

Pair = tuple[int, int]

_outputs, _kernels = [of_output(IN + 1 - size) for size in KERNELS], [of_kernel(size) for size in KERNELS]
transform_tile = tile_transform([B_T, *(matrix.T for matrix in _outputs)])
transform_output = tile_transform(_outputs, with_bias=True)
transform_kernel, transform_kernel_gradient = tile_transform(_kernels), tile_transform([each.T for each in _kernels])


@parallel
def convolve(
    x: Array,
    kernels: Array,
    bias: Array,
    plus: Array,
    relu: bool,
    y: Array,
    kernel: int,
    pad: Pair,
    transformed: Array,
    products: Array,
) -> None:
    """y = the convolution of x, plus `bias` (K,), then ReLU with `relu`. Adds `plus` before ReLU if it has y's shape.

    All threads compute the same number of blocks of about equal size. Below SEPARATE_TILES the threads instead share
    the tiles, and then the products, of each block.
    """
    number, threads = tile_count(y, kernel), transformed.shape[0]
    blocks, groups = (number + BLOCK_TILES - 1) // BLOCK_TILES, (number + FEW_ROWS - 1) // FEW_ROWS
    separate = (blocks + threads - 1) // threads * threads if number >= SEPARATE_TILES * threads else 0
    for thread in prange(threads):
        own, own_products = transformed[thread], products[thread]
        for block in range(separate * thread // threads, separate * (thread + 1) // threads):
            begin, behind = share(0, groups, block, separate)
            first, end = begin * FEW_ROWS, min(number, behind * FEW_ROWS)
            transform_tiles(x, y, kernel, pad, IN, (first, end), own, first)
            for value in range(VALUES):
                multiply_tiles(own[value], kernels[value], own_products[value], x.shape[1], end - first)
            transform_outputs(own_products, bias, plus, relu, y, kernel, (first, end), first)
    shared, shared_products = transformed[0], products[0]
    for block in range(0 if separate else blocks):
        first, end = block * BLOCK_TILES, min(number, (block + 1) * BLOCK_TILES)
        for thread in prange(threads):
            transform_tiles(x, y, kernel, pad, IN, share(first, end, thread, threads), shared, first)
        for value in prange(VALUES):
            multiply_tiles(shared[value], kernels[value], shared_products[value], x.shape[1], end - first)
        for thread in prange(threads):
            part = share(first, end, thread, threads)
            transform_outputs(shared_products, bias, plus, relu, y, kernel, part, first)


@parallel
def kernel_gradient(
    x: Array, dy: Array, gradient: Array, kernel: int, pad: Pair, transformed: Array, transformed_dy: Array
) -> None:
    """gradient (36, lines, CHANNELS) = the gradient of the transformed kernels.

    The threads share the tiles of each block, and then its 36 products. So the order of the sums does not depend on the
    number of threads. A panel of the gradient has C + FEW_ROWS lines. Only its first C lines are defined.
    """
    number, threads = tile_count(dy, kernel), transformed.shape[0]
    inputs, outputs = transformed[0], transformed_dy[0]
    for block in range((number + BLOCK_TILES - 1) // BLOCK_TILES):
        first, end = block * BLOCK_TILES, min(number, (block + 1) * BLOCK_TILES)
        for thread in prange(threads):
            part = share(first, end, thread, threads)
            transform_tiles(x, dy, kernel, pad, IN, part, inputs, first)
            transform_tiles(dy, dy, kernel, (0, 0), IN + 1 - kernel, part, outputs, first)
        for value in prange(VALUES):
            add_gradient(inputs[value], outputs[value], gradient[value], x.shape[1], end - first, block > 0)


@inlined
def share(first: int, end: int, thread: int, threads: int) -> tuple[int, int]:
    """The thread's part of range(first, end): its first number and its end."""
    return first + (end - first) * thread // threads, first + (end - first) * (thread + 1) // threads


@inlined
def tile_count(y: Array, kernel: int) -> int:
    """Number of tiles of the output."""
    out = IN + 1 - kernel
    return y.shape[0] * ((y.shape[2] + out - 1) // out) * ((y.shape[3] + out - 1) // out)


@inlined
def corner(y: Array, kernel: int, tile: int) -> tuple[int, int, int]:
    """Image, row and column in y of the tile's first pixel."""
    out = IN + 1 - kernel
    rows, columns = (y.shape[2] + out - 1) // out, (y.shape[3] + out - 1) // out
    return tile // (rows * columns), tile // columns % rows * out, tile % columns * out


@inlined
def pixel(x: Array, image: int, row: int, column: int) -> int:
    """Offset of the pixel's first channel, in elements."""
    return ((image * x.shape[2] + row) * x.shape[3] + column) * (x.strides[3] // x.itemsize)


@compiled
def multiply_tiles(tiles: Array, kernels: Array, products: Array, channels: int, used: int) -> None:
    """Multiply the first `used` tiles (lines, padded C) by the kernels (lines, CHANNELS), for one of the 36 values.

    The products are (lines, padded K). A panel of the kernels stays in the cache until all tiles are multiplied.
    """
    inner, outer, size, whole = tiles.shape[1], products.shape[1], channels * CHANNELS, used // ROWS * ROWS
    for panel in range(kernels.shape[0] // channels):
        for row in range(0, used, FEW_ROWS):
            first, begin, to = row * inner, panel * size, row * outer + panel * CHANNELS
            if row >= whole:
                multiply_few(tiles, first, inner, 1, kernels, begin, CHANNELS, products, to, outer, channels, False)
            elif row % ROWS == 0:
                multiply(tiles, first, inner, 1, kernels, begin, CHANNELS, products, to, outer, channels, False)


@compiled
def add_gradient(inputs: Array, outputs: Array, gradient: Array, channels: int, used: int, adds: bool) -> None:
    """gradient = inputs.T @ outputs of the first `used` tiles, for one of the 36 values. `adds` adds it instead."""
    inner, outer, rows, whole = inputs.shape[1], outputs.shape[1], channels + FEW_ROWS, channels // ROWS * ROWS
    for panel in range(gradient.shape[0] // rows):
        for row in range(0, channels, FEW_ROWS):
            begin, to = panel * CHANNELS, (panel * rows + row) * CHANNELS
            if row >= whole:
                multiply_few(inputs, row, 1, inner, outputs, begin, outer, gradient, to, CHANNELS, used, adds)
            elif row % ROWS == 0:
                multiply(inputs, row, 1, inner, outputs, begin, outer, gradient, to, CHANNELS, used, adds)


@compiled
def transform_tiles(
    x: Array, y: Array, kernel: int, pad: Pair, size: int, part: Pair, target: Array, origin: int
) -> None:
    """Transform tiles part[0] to part[1] of x into target (36, lines, padded C), which begins with tile `origin`.

    With `size` IN, x has input tiles d, and the target gets B^T d B. Otherwise `size` is that of output tiles: x is the
    output's gradient with tiles dY, and the target gets A dY A^T. y is the output, and gives the tiles their numbers.
    """
    work = np.empty(WORK, np.float32)
    width, beside, out = target.shape[2], target.shape[1] * target.shape[2], IN + 1 - kernel
    across = x.strides[3] // x.itemsize
    down = x.shape[3] * across
    for number in range(part[0], part[1]):
        image, row, column = corner(y, kernel, number)
        row, column = row - pad[0], column - pad[1]
        next_image, next_row, next_column = corner(y, kernel, number + 1)
        next_tile = pixel(x, next_image, next_row - pad[0], next_column - pad[1])
        inside = 0 <= row <= x.shape[2] - size and 0 <= column <= x.shape[3] - size
        for begin in range(0, x.shape[1], CHANNELS):
            channel = min(begin, x.shape[1] - CHANNELS)
            to = (number - origin) * width + channel
            first = pixel(x, image, row, column) + channel
            for i in range(size):
                for j in range(size - out, size):
                    fetch(x, next_tile + i * down + j * across + channel)
            if inside:
                transform_tile(size, x, first, down, across, target, to, IN * beside, beside)
            else:
                load(x, image, row, column, channel, size, work)
                transform_tile(size, work, 0, ROW, CHANNELS, target, to, IN * beside, beside)


@compiled
def load(x: Array, image: int, row: int, column: int, channel: int, size: int, tile: Array) -> None:
    """Copy size x size pixels, which begin at this row and column of x, into a tile with rows of IN pixels."""
    for i in range(size):
        for j in range(size):
            to = i * ROW + j * CHANNELS
            if 0 <= row + i < x.shape[2] and 0 <= column + j < x.shape[3]:
                copy(x, pixel(x, image, row + i, column + j) + channel, NO_BOUND, tile, to)
            else:
                tile[to : to + CHANNELS] = 0


@compiled
def transform_outputs(
    products: Array, bias: Array, plus: Array, relu: bool, y: Array, kernel: int, part: Pair, origin: int
) -> None:
    """Write tiles part[0] to part[1] of y: A^T m A, plus `bias` and `plus`, then ReLU.

    m is `products` (36, lines, padded K), which begins with tile `origin`.
    """
    work = np.empty(WORK, np.float32)
    least, out, adds = np.float32(0) if relu else NO_BOUND, IN + 1 - kernel, plus.shape == y.shape
    width, beside = products.shape[2], products.shape[1] * products.shape[2]
    across = y.strides[3] // y.itemsize
    down = y.shape[3] * across
    for number in range(part[0], part[1]):
        image, row, column = corner(y, kernel, number)
        direct = not adds and row + out <= y.shape[2] and column + out <= y.shape[3]
        next_image, next_row, next_column = corner(y, kernel, number + 1)
        next_tile = pixel(y, next_image, next_row, next_column)
        for begin in range(0, y.shape[1], CHANNELS):
            channel = min(begin, y.shape[1] - CHANNELS)
            for i in range(out):
                for j in range(out):
                    fetch(y, next_tile + i * down + j * across + channel)
            start = (number - origin) * width + channel
            if direct:
                to = pixel(y, image, row, column) + channel
                transform_output(out, products, start, IN * beside, beside, y, to, down, across, bias, channel, least)
                continue
            transform_output(out, products, start, IN * beside, beside, work, 0, ROW, CHANNELS, bias, channel, NO_BOUND)
            for i in range(min(out, y.shape[2] - row)):
                for j in range(min(out, y.shape[3] - column)):
                    value = i * ROW + j * CHANNELS
                    to = pixel(y, image, row + i, column + j) + channel
                    if adds:
                        add(plus, to, work, value)
                    copy(work, value, least, y, to)


@parallel
def transform_kernels(weights: Array, turned: bool, target: Array, threads: int) -> None:
    """target (36, lines, CHANNELS) = G g G^T of the kernels g.

    With `turned` it transforms the kernels turned by 180 degrees, with C and K exchanged. A convolution of the output's
    gradient with these gives the gradient of the input.
    """
    outputs, rows = (weights.shape[1], weights.shape[0]) if turned else (weights.shape[0], weights.shape[1])
    beside, kernel = target.shape[1] * CHANNELS, weights.shape[2]
    for thread in prange(threads):
        work = np.zeros(WORK, np.float32)
        first, end = share(0, rows, thread, threads)
        for column in range(0, outputs, CHANNELS):
            for row in range(first, end):
                for c in range(min(CHANNELS, outputs - column)):
                    for i in range(kernel):
                        for j in range(kernel):
                            to = i * ROW + j * CHANNELS + c
                            if turned:
                                work[to] = weights[row, column + c, kernel - 1 - i, kernel - 1 - j]
                            else:
                                work[to] = weights[column + c, row, i, j]
                to = column * rows + row * CHANNELS
                transform_kernel(kernel, work, 0, ROW, CHANNELS, target, to, IN * beside, beside)


@parallel
def gradient_of_kernels(transformed: Array, adds: bool, gradient: Array, threads: int) -> None:
    """gradient (K, C, kernel, kernel) = G^T t G of the gradient t of transformed kernels. `adds` adds it instead."""
    rows = gradient.shape[1] + FEW_ROWS
    beside, kernel = transformed.shape[1] * CHANNELS, gradient.shape[2]
    for thread in prange(threads):
        work = np.empty(WORK, np.float32)
        first, end = share(0, gradient.shape[1], thread, threads)
        for column in range(0, gradient.shape[0], CHANNELS):
            for row in range(first, end):
                start = column * rows + row * CHANNELS
                transform_kernel_gradient(kernel, transformed, start, IN * beside, beside, work, 0, ROW, CHANNELS)
                for c in range(min(CHANNELS, gradient.shape[0] - column)):
                    for i in range(kernel):
                        for j in range(kernel):
                            value = work[i * ROW + j * CHANNELS + c]
                            gradient[column + c, row, i, j] = gradient[column + c, row, i, j] + value if adds else value
