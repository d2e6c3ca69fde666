"""Winograd's transforms F(4x4, 3x3): a 3x3 convolution with a quarter of the multiplications.

An output tile of 4x4 pixels depends on an input tile of 6x6. Let d be the input tile, g the 3x3 kernel and Y the output
tile, all of one channel. Convolution is multiplication of polynomials, whose product is found from its values at six
points instead of from its coefficients:

    Y = A^T [(G g G^T) * (B^T d B)] A

`*` multiplies the 36 values of both transformed tiles elementwise, so 36 multiplications take the part of 144. With
channels, each of the 36 values becomes a matrix product over input channels, (tiles, C) times (C, K), in which nearly
all of the work lies. The transforms only add and scale, along one axis of the tile and then along the other.

B^T, G and A^T belong to the points 0, 1, -1, 2, -2 and infinity (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", CVPR 2016, section 4.3). They are the six smallest points, which lets the factors stay small: each
factor above 1 costs digits. With float32 sums the result has an error of some 1e-5 of the largest output, and a direct
convolution 1e-6. F(6x6, 3x3) would need 2.25 instead of 4 multiplications per pixel but has an error of 1e-4.

The gradients use the same matrices, since a gradient of a product of matrices is a product with their transposes. The
gradient of the input is a convolution of the output's gradient with the kernels turned by 180 degrees. The gradient of
the kernel, with dY of a tile, is

    dg = G^T [(A dY A^T) * (B^T d B)] G,   summed over tiles

Each function below transforms one axis of a tile: it reads `step`-spaced rows of CHANNELS values and writes as many.
Numba compiles the loops over channels to vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.engines.winograd.compiling import inlined

OUT, IN, KERNEL = 4, 6, 3  # pixels along an axis of an output tile, of an input tile and of a kernel
CHANNELS = 32

B_T = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    np.float32,
)
G = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    np.float32,
)
A_T = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)

SIXTH = np.float32(1 / 6)

Array = Any


@inlined
def input_axis(source: Array, first: int, step: int, target: Array, begin: int, stride: int) -> None:
    """B^T along one axis: the six rows at first + i * step become those at begin + i * stride."""
    for c in range(CHANNELS):
        d0, d1 = source[first + c], source[first + step + c]
        d2, d3 = source[first + 2 * step + c], source[first + 3 * step + c]
        d4, d5 = source[first + 4 * step + c], source[first + 5 * step + c]
        even, odd = d4 - 4 * d2, d3 - 4 * d1
        even_2, odd_2 = d4 - d2, 2 * (d3 - d1)
        target[begin + c] = 4 * d0 - 5 * d2 + d4
        target[begin + stride + c] = even + odd
        target[begin + 2 * stride + c] = even - odd
        target[begin + 3 * stride + c] = even_2 + odd_2
        target[begin + 4 * stride + c] = even_2 - odd_2
        target[begin + 5 * stride + c] = 4 * d1 - 5 * d3 + d5


@inlined
def output_axis(source: Array, first: int, step: int, target: Array, begin: int, stride: int) -> None:
    """A^T along one axis: six rows become four."""
    for c in range(CHANNELS):
        m1, m2 = source[first + step + c], source[first + 2 * step + c]
        m3, m4 = source[first + 3 * step + c], source[first + 4 * step + c]
        even, odd = m1 + m2, m1 - m2
        even_2, odd_2 = m3 + m4, m3 - m4
        target[begin + c] = source[first + c] + even + even_2
        target[begin + stride + c] = odd + 2 * odd_2
        target[begin + 2 * stride + c] = even + 4 * even_2
        target[begin + 3 * stride + c] = odd + 8 * odd_2 + source[first + 5 * step + c]


@inlined
def gradient_axis(source: Array, first: int, step: int, target: Array, begin: int, stride: int) -> None:
    """A along one axis: four rows become six."""
    for c in range(CHANNELS):
        y0, y1 = source[first + c], source[first + step + c]
        y2, y3 = source[first + 2 * step + c], source[first + 3 * step + c]
        even, odd = y0 + y2, y1 + y3
        even_2, odd_2 = y0 + 4 * y2, 2 * y1 + 8 * y3
        target[begin + c] = y0
        target[begin + stride + c] = even + odd
        target[begin + 2 * stride + c] = even - odd
        target[begin + 3 * stride + c] = even_2 + odd_2
        target[begin + 4 * stride + c] = even_2 - odd_2
        target[begin + 5 * stride + c] = y3


@inlined
def kernel_axis(source: Array, first: int, step: int, target: Array, begin: int, stride: int) -> None:
    """G along one axis: three rows become six."""
    for c in range(CHANNELS):
        g0, g1, g2 = source[first + c], source[first + step + c], source[first + 2 * step + c]
        even, odd = (g0 + g2) * SIXTH, g1 * SIXTH
        even_2, odd_2 = g0 * (SIXTH / 4) + g2 * SIXTH, g1 * (SIXTH / 2)
        target[begin + c] = g0 * np.float32(0.25)
        target[begin + stride + c] = -even - odd
        target[begin + 2 * stride + c] = odd - even
        target[begin + 3 * stride + c] = even_2 + odd_2
        target[begin + 4 * stride + c] = even_2 - odd_2
        target[begin + 5 * stride + c] = g2


@inlined
def kernel_gradient_axis(source: Array, first: int, step: int, target: Array, begin: int, stride: int) -> None:
    """G^T along one axis: six rows become three."""
    for c in range(CHANNELS):
        m1, m2 = source[first + step + c], source[first + 2 * step + c]
        m3, m4 = source[first + 3 * step + c], source[first + 4 * step + c]
        ones, twos = (m1 + m2) * SIXTH, (m3 + m4) * SIXTH
        target[begin + c] = source[first + c] * np.float32(0.25) - ones + twos * np.float32(0.25)
        target[begin + stride + c] = (m2 - m1) * SIXTH + (m3 - m4) * (SIXTH / 2)
        target[begin + 2 * stride + c] = twos - ones + source[first + 5 * step + c]
