"""Batch normalisation, local response normalisation and softmax by oneDNN's primitives.

oneDNN's own batch normalisation adds each channel's values one after the other in float32, so a mean over 10^5 values
loses three digits, and it rounds a product and a sum once. Here `fcaffe.engines.channels` computes all sums, and binary
primitives the rest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_byte, c_float, c_int, c_int64
from typing import Any

import numpy as np

from fcaffe.engines.channels import channel_products, is_channels_last, is_near
from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.engines.limits import or_plain, require
from fcaffe.engines.memory import Array
from fcaffe.engines.normalization import Normalizer, PlainNormalization, Whole
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import type_of
from fcaffe.engines.onednn.limits import LIMITS
from fcaffe.engines.onednn.operation import SMALL, Operation, Operations, Step
from fcaffe.engines.onednn.primitives import Description, Layout

ACROSS_CHANNELS, SOFTMAX = 0xAFF, 0x30000  # dnnl_lrn_across_channels, dnnl_softmax_accurate
WIDTH = 512  # values of a row; shorter ones are slow


class Normalization(Operations, PlainNormalization):
    """Batch normalisation works on dense arrays, channels-last or in C order. Array code computes others and very small
    ones."""

    lrn_memory = 2

    @or_plain
    def batch_norm_apply(self, x: Array, y: Array, norm: Normalizer) -> None:
        self._leave_to_plain(x)
        with self.dense([], [y], like=x) as (out,):
            self.along_channels(x, out, _normalizing(norm), norm.relu)

    @or_plain
    def batch_norm_add_relu(self, x: Array, other: Array, y: Array, norm: Normalizer) -> None:
        self._leave_to_plain(x)
        with self.dense([other], [y], like=x) as (addend, out):
            self.along_channels(x, out, [*_normalizing(norm), (dnnl.ADD, addend)], relu=True)

    @or_plain
    def batch_norm_train_backward(
        self, x: Array, dy: Array, dx: Array, norm: Normalizer, gradients: Sequence[Array], whole: Whole | None = None
    ) -> None:
        self._leave_to_plain(x)
        deviation = np.sqrt(norm.variance + np.float64(norm.eps))
        with self.dense([dy], [dx], like=x) as (slope, out):
            if norm.relu:
                is_positive: list[Step] = [(dnnl.LINEAR, FLT_MAX, 0), (dnnl.CLIP, 0, 1)]  # 0 for NaN
                self.along_channels(x, out, [*_normalizing(norm), *is_positive, (dnnl.MULTIPLY, slope)])
                slope = out
            sums = self._products(x, slope, norm.mean, norm.variance)
            sums[0] /= deviation
            if gradients:
                gradients[0][...], gradients[1][...] = sums
            count: float = x.size // x.shape[1]
            if whole is not None:
                count, sums = whole.values, whole.sum(sums)
            product, shift = sums / count
            steps = [(dnnl.SUBTRACT, norm.mean), (dnnl.MULTIPLY, -product / deviation), (dnnl.ADD, slope)]
            factor = 1 / deviation if norm.scale is None else norm.scale / deviation
            self.along_channels(x, out, [*steps, (dnnl.SUBTRACT, shift), (dnnl.MULTIPLY, factor)])

    @or_plain
    def scale_channels(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        self._leave_to_plain(x)
        with self.dense([], [y], like=x) as (out,):
            self.along_channels(x, out, [(dnnl.MULTIPLY, scale), (dnnl.ADD, shift)])

    @or_plain
    def scale_channels_backward(
        self, x: Array, dy: Array, dx: Array, scale: Array, dscale: Array, dshift: Array
    ) -> None:
        self._leave_to_plain(x)
        with self.dense([dy], [dx], like=x) as (slope, out):
            dscale[...], dshift[...] = self._products(x, slope, np.zeros_like(scale), np.ones_like(scale))
            self.along_channels(slope, out, [(dnnl.MULTIPLY, scale)])

    def _leave_to_plain(self, x: Array) -> None:
        """Raise UnfitError where the library cannot work on rows of channels, or array code is faster."""
        require(x.size >= SMALL)
        LIMITS["channels"].check([x])

    def _products(self, x: Array, dy: Array, mean: Array, variance: Array) -> Array:
        """For each channel the sums of (x - mean) * dy and of dy, (2, C) in float64."""
        shift = None if np.all(is_near(mean, variance)) else mean
        total, product = channel_products(x, dy, shift, self.for_each)
        return np.stack([product - mean * total if shift is None else product, total])

    def along_channels(self, x: Array, y: Array, steps: Sequence[Step], relu: bool = False) -> None:
        """y = x after these steps, then ReLU with `relu`. y is laid out like x.

        The array of a step is laid out like x, or has one value per channel, as that of the first step has.
        """
        channels, rows_at_once = x.shape[1], _side_by_side(x)
        images = 1 if is_channels_last(x) else x.shape[0]
        shape = images, channels * rows_at_once, x.size // (images * channels * rows_at_once), 1
        inner = (1, shape[1]) if is_channels_last(x) else (shape[2], 1)

        def layout(array: Array) -> Layout:
            if array.ndim == 1:
                return Layout(self.library, (1, array.size, 1, 1), dnnl.F32, (array.size, 1, 1, 1))
            return Layout(self.library, shape, type_of(array), (math.prod(shape[1:]), *inner, inner[1]))

        def repeated(step: Step) -> Step:
            if len(step) == 3 or step[1].ndim > 1:
                return step
            return step[0], np.tile(step[1].astype(np.float32, copy=False), rows_at_once)

        self.in_steps(x, y, list(map(repeated, steps)), relu, layout)

    @or_plain
    def lrn_forward(self, x: Array, y: Array, memory: Array, size: int, alpha: float, beta: float, k: float) -> None:
        def build() -> Operation:
            library = self.library
            description = self._describe_lrn(x, size, alpha, beta, k, memory is not None)
            opaque = [] if memory is None else [dnnl.WORKSPACE]
            return Operation(library, description, {dnnl.SRC: library.layout(x)}, {dnnl.DST: library.layout(y)}, opaque)

        settings = size, beta, memory is not None, self.library.has(dnnl.AVX512_CORE), alpha, k
        outs = (address(y),) if memory is None else (address(y), address(memory))
        self.operation("lrn", (x, y), settings, build)((address(x),), outs)

    @or_plain
    def lrn_backward(
        self, x: Array, memory: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float, k: float
    ) -> None:
        def build() -> Operation:
            library = self.library
            description = library.describe(
                "lrn_backward",
                library.engine,
                c_int(ACROSS_CHANNELS),
                library.channels_last(dx),
                library.channels_last(dy),
                library.channels_last(x),
                *_lrn_numbers(size, alpha, beta, k),
                self._describe_lrn(x, size, alpha, beta, k, True),
                library.attributes(),
            )
            inputs = {dnnl.SRC: library.layout(x), dnnl.DIFF_DST: library.layout(dy)}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)}, [dnnl.WORKSPACE])

        settings = size, beta, True, self.library.has(dnnl.AVX512_CORE), alpha, k
        self.operation("lrn", (x, dy, dx), settings, build)((address(x), address(dy)), (address(dx), address(memory)))

    def _describe_lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, training: bool) -> Description:
        library, layout = self.library, self.library.channels_last(x)
        return library.describe(
            "lrn_forward",
            library.engine,
            c_int(dnnl.FORWARD_TRAINING if training else dnnl.FORWARD_INFERENCE),
            c_int(ACROSS_CHANNELS),
            layout,
            layout,
            *_lrn_numbers(size, alpha, beta, k),
            library.attributes(),
        )

    @or_plain
    def softmax_forward(self, x: Array, y: Array, axis: int) -> None:
        with self._rows([self.as_float32(x)], [y], axis) as (x_, y_):
            self._softmax([x_], y_)
            spread = _spreading_nan(y_)
            if self.library.tape is not None:
                self.library.tape.add(spread, True, (address(y_),))
            spread()

    @or_plain
    def softmax_backward(self, y: Array, dy: Array, dx: Array, axis: int) -> None:
        with self._rows([y, dy], [dx], axis) as (y_, dy_, dx_):
            self._softmax([y_, dy_], dx_)

    @contextlib.contextmanager
    def _rows(self, inputs: Sequence[Array], outputs: Sequence[Array], axis: int) -> Iterator[list[Array]]:
        """Yields the arrays, or copies as of `dense`, as rows of the values along this axis. Raises UnfitError if the
        output does not have them side by side: NumPy is faster there."""
        shape = outputs[0].shape
        order = [*range(axis), *range(axis + 1, len(shape)), axis]
        moved_in, moved_out = ([array.transpose(order) for array in arrays] for arrays in (inputs, outputs))
        like = moved_out[0]
        require(like.size and like.flags.c_contiguous)
        with self.dense(moved_in, moved_out, like) as inside:
            yield [array.reshape(-1, shape[axis]) for array in inside]

    def _softmax(self, inputs: Sequence[Array], output: Array) -> None:
        """The softmax of the rows of x, or the gradient of x, from the softmax and its gradient."""

        def build() -> Operation:
            library, layouts = self.library, [self.library.layout(array) for array in (*inputs, output)]
            of, along, attributes = c_int(SOFTMAX), c_int(1), library.attributes()
            training, like = c_int(dnnl.FORWARD_TRAINING), layouts[0]
            forward = library.describe(
                "softmax_forward", library.engine, training, of, like, layouts[-1], along, attributes
            )
            if len(inputs) == 1:
                return Operation(library, forward, {dnnl.SRC: like}, {dnnl.DST: layouts[1]})
            y, dy, dx = layouts
            backward = library.describe("softmax_backward", library.engine, of, dx, dy, y, along, forward, attributes)
            return Operation(library, backward, {dnnl.DST: y, dnnl.DIFF_DST: dy}, {dnnl.DIFF_SRC: dx})

        settings = self.library.has(dnnl.AVX2), self.library.has(dnnl.AVX512_CORE)
        operation = self.operation("softmax", (*inputs, output), settings, build)
        operation(tuple(map(address, inputs)), (address(output),))


def _normalizing(norm: Normalizer) -> list[Step]:
    """The steps of the function, but for the ReLU."""
    deviation = np.sqrt(norm.variance + np.float32(norm.eps))
    if norm.scale is None:
        return [(dnnl.SUBTRACT, norm.mean), (dnnl.DIVIDE, deviation)]
    return [(dnnl.SUBTRACT, norm.mean), (dnnl.MULTIPLY, norm.scale / deviation), (dnnl.ADD, norm.shift)]


def _side_by_side(x: Array) -> int:
    """How many rows of a channels-last array count as one. At least two are left."""
    rows_at_once = 1
    if is_channels_last(x):
        rows = x.size // x.shape[1]
        while rows_at_once * x.shape[1] < WIDTH and rows % (2 * rows_at_once) == 0 and rows > 2 * rows_at_once:
            rows_at_once *= 2
    return rows_at_once


def _lrn_numbers(size: int, alpha: float, beta: float, k: float) -> tuple[Any, ...]:
    return c_int64(size), c_float(alpha), c_float(beta), c_float(k)


def _spreading_nan(y: Array) -> Callable[[], int]:
    """A function for a tape that makes each row of y with a NaN all NaN, as softmax is in Caffe, and returns a status.

    The primitive leaves zeros beside a NaN. The function does not keep the memory of y alive."""
    rows = np.ndarray(y.shape, y.dtype, (c_byte * y.nbytes).from_address(address(y)))

    def run() -> int:
        if np.isnan(rows.max()):
            rows[np.isnan(rows).any(axis=1)] = np.nan
        return 0

    return run
