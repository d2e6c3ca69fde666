"""Elementwise operators, Dropout and biases, by CuPy's kernels of formulas, which read and write memory once; and rows
at indices."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last, is_channels_last
from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.cuda.operands import BYTES
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.engine import PlainRows
from fcaffe.engines.formulas import Formula
from fcaffe.engines.memory import Array

RELU = Formula("max(x, 0) + slope * min(x, 0)")
RELU_GRADIENT = Formula("dy * ((y > 0) + slope * (y <= 0))")
PRODUCT = Formula("x * y")
MASKED = Formula("x * (mask * scale)")
BIASED = Formula("max(x + bias, 0) + slope * min(x + bias, 0)")

MANY = 1 << 16  # threads, which keep a GPU busy


class Elementwise(PlainElementwise, PlainRows):
    """Arrays of any types and orders. Dropout's masks are 1 where a value is kept.

    CuPy computes values in the order of indices, one a thread. So axes are put into the order of memory first.
    """

    kernels: Kernels
    counters: Array  # uint64 (4,): see set_counters; on the device, so that recorded passes read new values
    mask_dtype = "uint8"

    def pointwise(self, formula: Formula, arrays: Mapping[str, Any], out: Array) -> None:
        """The arrays may also be NumPy scalars."""
        order = memory_order(out)
        operands = {
            name: one if isinstance(one, np.generic) else self.xp.broadcast_to(one, out.shape).transpose(order)
            for name, one in arrays.items()
        }
        self.kernels.of_formula(formula, operands, out.transpose(order))

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        self.pointwise(RELU, {"x": x, "slope": np.float32(slope)}, y)

    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        self.pointwise(RELU_GRADIENT, {"y": y, "dy": dy, "slope": np.float32(slope)}, dx)

    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        operands = {f"x{index}": array for index, array in enumerate(arrays)}
        weights = {f"w{index}": np.float32(factor) for index, factor in enumerate(factors)}
        self.pointwise(_weighted_sum(len(arrays)), {**operands, **weights}, y)

    def multiply(self, a: Array, b: Array, y: Array) -> None:
        self.pointwise(PRODUCT, {"x": a, "y": b}, y)

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
        self.pointwise(MASKED, {"x": x, "mask": mask, "scale": np.float32(scale)}, y)

    def copy(self, x: Array, y: Array) -> None:
        """y = x, of one shape, by 16 bytes at a time where possible."""
        order = memory_order(y)
        x, y = x.transpose(order), y.transpose(order)
        if _is_in_words(x, y):
            x, y = x.view(np.complex128), y.view(np.complex128)
        y[...] = x

    def add_bias(self, y: Array, bias: Array, relu: bool = False) -> None:
        along_channels = bias.reshape(-1, *(1,) * (y.ndim - 2))
        self.pointwise(BIASED, {"x": y, "bias": along_channels, "slope": np.float32(not relu)}, y)

    def channel_sums(self, x: Array) -> Array:
        """Sums along one axis after the other: CuPy uses a thread block for 32 sums, so few sums would be slow."""
        sums = channels_last(x)
        while sums.ndim > 1:
            sums = sums.sum(axis=-2, dtype=np.float32)
        return sums

    def add_rows(self, rows: Array, indices: Array, target: Array) -> None:
        """In their order. CuPy adds in any order, so last bits would differ."""
        if not rows.size:
            return
        if rows.dtype != np.float32 or target.dtype != np.float32:
            super().add_rows(rows, indices, target)
            return
        if rows.ndim == target.ndim > 3 and is_channels_last(rows) and is_channels_last(target):
            rows, target = channels_last(rows), channels_last(target)
        given, sums, dense = map(self.xp.ascontiguousarray, (rows, target, indices))
        width = target.size // target.shape[0]
        remainders = max(1, min(target.shape[0], MANY // width))
        numbers = map(np.int64, (indices.size, width, remainders))
        blocks = blocks_for(width * remainders)
        self.kernels.launch("rows", "add_rows", (), blocks, THREADS, given, dense, sums, *numbers)
        if sums is not target:
            target[...] = sums

    def scattered(self, values: Array, indices: Array, count: int) -> Array:
        """CuPy also assigns in any order, so the last value of equal indices is selected first."""
        xp = self.xp
        last, order = xp.zeros(count, np.int32), xp.arange(1, values.size + 1, dtype=np.int32)
        xp.maximum.at(last, indices, order)
        target = xp.zeros(count, values.dtype)
        xp.add.at(target, indices, xp.where(last[indices] == order, values, 0))
        return target


def memory_order(array: Array) -> list[int]:
    """The axes, those with the longest strides first."""
    return sorted(range(array.ndim), key=lambda axis: -array.strides[axis])


@functools.cache
def _weighted_sum(count: int) -> Formula:
    return Formula(" + ".join(f"w{index} * x{index}" for index in range(count)))


def _is_in_words(x: Array, y: Array) -> bool:
    """Whether both arrays, of one type, consist of whole words of 16 bytes along the last axis."""
    if x.dtype != y.dtype or not x.ndim or any(array.strides[-1] != array.itemsize for array in (x, y)):
        return False
    numbers = [n for a in (x, y) for n in (a.data.ptr, a.shape[-1] * a.itemsize, *a.strides[:-1])]
    return not any(number % BYTES for number in numbers)
