"""Winograd's transforms F(4x4, 3x3) and F(2x2, 5x5): convolutions with a quarter or a third of the multiplications.

An output tile of 4x4 pixels depends on an input tile of 6x6. Let d be the input tile, g the 3x3 kernel and Y the output
tile, all of one channel. Convolution is multiplication of polynomials, whose product is found from its values at six
points instead of from its coefficients:

    Y = A^T [(G g G^T) * (B^T d B)] A

`*` multiplies the 36 values of both transformed tiles elementwise, so 36 multiplications take the part of 144. A kernel
of 5x5 makes an output tile of 2x2 from 6x6 pixels: 36 multiplications take the part of 100. With channels, each of the
36 values becomes a matrix product over input channels, (tiles, C) times (C, K), in which nearly all of the work lies.
The transforms only add and scale, along one axis of the tile and then along the other.

The points are 0, 1, -1, 2, -2 and infinity (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR
2016, section 4.3). G takes the values of the kernel's polynomial at the points: it has their powers, and at infinity
the highest coefficient. A^T has the powers too, transposed. B^T interpolates, by Lagrange's formula: the row of a point
has the coefficients of the product of x - q over the other points q, and G divides by the product's value there.
These are the six smallest points, so that the factors stay small: each factor above 1 costs digits. With float32 sums
the result has an error of some 1e-5 of the largest output, and a direct convolution 1e-6. F(6x6, 3x3) would need 2.25
instead of 4 multiplications per pixel but has an error of 1e-4.

The gradients use the same matrices, since a gradient of a product of matrices is a product with their transposes. The
gradient of the input is a convolution of the output's gradient with the kernels turned by 180 degrees. The gradient of
the kernel, with dY of a tile, is

    dg = G^T [(A dY A^T) * (B^T d B)] G,   summed over tiles

`along_both_axes` computes with anything that adds and scales: numbers, arrays, or the registers of a program that is
being compiled (`vectors.py`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

IN = 6  # pixels along an axis of an input tile
KERNELS = (3, 5)  # pixels along an axis of a kernel; an output tile has IN + 1 less that
CHANNELS = 16  # of a vector in compiled code
POINTS = (0, 1, -1, 2, -2)

SUMS_AND_DIFFERENCES = np.eye(IN)
for point in (1, 3):  # the indices of 1 and 2, whose opposites follow
    SUMS_AND_DIFFERENCES[point : point + 2, point : point + 2] = [[1, 1], [1, -1]]

Value = Any
Tile = Sequence[Sequence[Value]]


def _others(point: int) -> list[int]:
    return [other for other in POINTS if other != point]


B_T = np.array([*([*np.poly(_others(point))[::-1], 0] for point in POINTS), np.poly(POINTS)[::-1]])


def of_kernel(size: int) -> np.ndarray:
    """G (6, size)."""
    scales = [1 / math.prod(point - other for other in _others(point)) for point in POINTS]
    rows = [[scale * point**power for power in range(size)] for point, scale in zip(POINTS, scales, strict=True)]
    return np.array([*rows, [0] * (size - 1) + [1]])


def of_output(size: int) -> np.ndarray:
    """A^T (size, 6)."""
    return np.array([[*(p**power for p in POINTS), power == size - 1] for power in range(size)])


def along_both_axes(matrix: np.ndarray, tile: Tile) -> Tile:
    """matrix @ tile @ matrix.T, where the tile is a list of lines."""
    columns = [_transformed(matrix, column) for column in zip(*tile, strict=True)]
    return [_transformed(matrix, line) for line in zip(*columns, strict=True)]


def factors(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two sparser matrices whose product is this one.

    The rows (or columns) of two opposite points have equal entries at even powers and opposite entries at odd powers.
    So one factor takes sums and differences. In the other, half of the entries of these points are 0.
    """
    inverse = np.linalg.inv(SUMS_AND_DIFFERENCES)
    pairs = []
    if matrix.shape[0] == IN:
        pairs.append((SUMS_AND_DIFFERENCES, inverse @ matrix))
    if matrix.shape[1] == IN:
        pairs.append((matrix @ inverse, SUMS_AND_DIFFERENCES))
    return min(pairs, key=lambda pair: sum(map(np.count_nonzero, pair)))


def _transformed(matrix: np.ndarray, values: Sequence[Value]) -> Sequence[Value]:
    for factor in reversed(factors(matrix)):
        rows = ([float(f) * value for f, value in zip(row, values, strict=True) if f] for row in factor)
        values = [functools.reduce(operator.add, terms) for terms in rows]
    return values
