"""Batch normalisation by oneDNN's primitives, in pieces, with sums whose error does not grow with the number of values.

oneDNN adds up each channel's values one after the other in float32, so a mean over 10^5 of them has lost its last three
digits. So the moments are those of `fcaffe.engines.channels`, and oneDNN normalises by statistics that it is given. In
backward it sees an array piece by piece, and neighbouring rows of a piece as further channels: each of its sums is over
some hundred values. What the pieces give is added up in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from ctypes import c_float, c_int, c_uint
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fcaffe.engines.channels import channels_last, is_near
from fcaffe.engines.normalization import Affine, PlainNormalization
from fcaffe.engines.onednn import library as dnnl
from fcaffe.engines.onednn.library import Layout, address
from fcaffe.engines.onednn.operation import SMALL, Operation, Operations

GLOBAL_STATISTICS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8  # dnnl_normalization_flags_t
WIDTH = 512  # values side by side of a piece, if the channels alone are not as many
PIECE = 1 << 17  # values of a piece for each thread: with one thread it stays in its cache
MOST_SUMMED = 64  # values of a channel that are added up in float32
VECTOR = 16  # float32 values of AVX-512

Array = Any


class Piece(NamedTuple):
    """A stretch of an array: where it begins, in values, and how oneDNN sees it: `groups` times as many channels as
    there are, of `length` values each."""

    start: int
    groups: int
    length: int


class BatchNorm(Operations, PlainNormalization):
    """Memory for the backward pass holds for each piece where its ReLU has let through."""

    batch_norm_memory = 0.25
    _threads: int
    _normals: dict[int, tuple[Array, Array]]

    if TYPE_CHECKING:

        def copy(self, x: Array, y: Array) -> None: ...

    def batch_norm_train(
        self, x: Array, y: Array, mean: Array, variance: Array, affine: Affine, eps: float, relu: bool, memory: Array
    ) -> None:
        if not _is_taken(x):
            super().batch_norm_train(x, y, mean, variance, affine, eps, relu, memory)
            return
        self.batch_norm_moments(x, mean, variance)
        if not relu:
            self.batch_norm_apply(x, y, mean, variance, affine, eps, relu)
            return
        out = y if y.strides == x.strides else np.empty_like(x)
        numbers = Repeated(mean, variance, *(affine or ()))
        source, target, kept = address(x), address(out), address(memory)
        for piece in self._pieces(x):
            ins = source + 4 * piece.start, *numbers.places(piece)
            outs = target + 4 * piece.start, kept + piece.start
            self._normalize_piece(x, piece, affine, eps)(ins, outs)
        if out is not y:
            self.copy(out, y)

    def batch_norm_moments(self, x: Array, mean: Array, variance: Array) -> None:
        """From the moments that oneDNN finds in each piece, which it normalises too, into memory that nobody reads."""
        if not _is_taken(x) or not _is_channels_last(x) or x.size < PIECE:
            super().batch_norm_moments(x, mean, variance)
            return
        source, pieces = address(x), list(self._pieces(x, MOST_SUMMED))
        scratch = self.library.temporary(
            dnnl.DST, 4 * max(piece.groups * piece.length for piece in pieces) * x.shape[1]
        )
        counts, found = [], []
        for piece in pieces:
            moments = np.empty((2, piece.groups, x.shape[1]), np.float32)
            first = address(moments)
            outs = scratch, first, first + moments.nbytes // 2
            self._moments_of_piece(x, piece)((source + 4 * piece.start,), outs)
            found.append(moments)
            counts += [piece.length] * piece.groups
        means, variances = np.concatenate(found, axis=1, dtype=np.float64)
        share = np.array(counts) / sum(counts)
        mean64 = share @ means
        variance64 = share @ (variances + (means - mean64) ** 2)
        if np.all(is_near(mean64, variance64)):
            mean[...], variance[...] = mean64, variance64
        else:  # then float32 has too few digits for the sums of a piece
            super().batch_norm_moments(x, mean, variance)

    def _moments_of_piece(self, x: Array, piece: Piece) -> Operation:
        def build() -> Operation:
            layout, channels = self._piece_layout(x, piece), piece.groups * x.shape[1]
            description = self._describe_batch_norm(layout, 1.0, 0, dnnl.FORWARD_TRAINING)
            outputs = {dnnl.DST: layout, **self._of_channels(channels, dnnl.MEAN, dnnl.VARIANCE)}
            return Operation(self.library, description, {dnnl.SRC: layout}, outputs)

        return self.operation(("batch norm moments", *_kind(x, piece)), build)

    def batch_norm_apply(
        self, x: Array, y: Array, mean: Array, variance: Array, affine: Affine, eps: float, relu: bool
    ) -> None:
        if not _is_taken(x):
            super().batch_norm_apply(x, y, mean, variance, affine, eps, relu)
            return

        def build() -> Operation:
            library, flags = self.library, _flags(affine, relu) | GLOBAL_STATISTICS
            description = self._describe_batch_norm(library.channels_last(x), eps, flags, dnnl.FORWARD_INFERENCE)
            inputs = self._inputs(library.layout(x), x.shape[1], affine)
            return Operation(library, description, inputs, {dnnl.DST: library.layout(y)})

        key = ("batch norm applied", x.shape, x.strides, y.strides, affine is None, eps, relu)
        ins = (address(x), address(mean), address(variance), *map(address, affine or ()))
        self.operation(key, build)(ins, (address(y),))

    def batch_norm_train_backward(
        self,
        x: Array,
        dy: Array,
        dx: Array,
        mean: Array,
        variance: Array,
        affine: Affine,
        gradients: Affine,
        eps: float,
        relu: bool,
        memory: Array,
    ) -> None:
        """dx of each piece as if mean and variance were constants, which gives the sums as well; then what comes
        through mean and variance, for which all sums must be there.

        What path is taken goes by x alone, as in the forward pass, which has left `memory` in the order of x.
        """
        if not _is_taken(x):
            super().batch_norm_train_backward(x, dy, dx, mean, variance, affine, gradients, eps, relu, memory)
            return
        out = dx if dx.strides == x.strides else np.empty_like(x)
        scale = affine[0] if affine else np.ones_like(mean)
        sums = self._backward_by_constants(x, dy, out, Repeated(mean, variance, scale), eps, memory if relu else None)
        if gradients:
            gradients[0][...], gradients[1][...] = sums
        deviation = np.sqrt(variance + np.float64(eps))
        dscale, dshift = sums * scale / deviation / (x.size // x.shape[1])
        self._add_affine(x, out, mean, (-dscale / deviation).astype(np.float32), (-dshift).astype(np.float32))
        if out is not dx:
            self.copy(out, dx)

    def scale_channels(self, x: Array, y: Array, scale: Array, shift: Array, relu: bool = False) -> None:
        if not _is_taken(x) or x.size < SMALL:
            super().scale_channels(x, y, scale, shift, relu)
            return
        self.batch_norm_apply(x, y, *self._normal(x.shape[1]), (scale, shift), 0.0, relu)

    def scale_channels_backward(
        self, x: Array, dy: Array, dx: Array, scale: Array, dscale: Array, dshift: Array
    ) -> None:
        if not _is_taken(x) or x.size < SMALL:
            super().scale_channels_backward(x, dy, dx, scale, dscale, dshift)
            return
        out = dx if dx.strides == x.strides else np.empty_like(x)
        numbers = Repeated(*self._normal(x.shape[1]), scale)
        dscale[...], dshift[...] = self._backward_by_constants(x, dy, out, numbers, 0.0, None)
        if out is not dx:
            self.copy(out, dx)

    def _normal(self, channels: int) -> tuple[Array, Array]:
        """The mean 0 and the variance 1 of this many channels, with which normalising does nothing."""
        if channels not in self._normals:
            self._normals[channels] = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        return self._normals[channels]

    def _backward_by_constants(
        self, x: Array, dy: Array, dx: Array, numbers: Repeated, eps: float, memory: Array | None
    ) -> Array:
        """Write dx, laid out like x, as if mean and variance were constants; returns the gradients of scale and shift,
        (2, C) in float64. With `memory` there was a ReLU behind."""
        if dy.strides != x.strides:
            given, dy = dy, np.empty_like(x)
            self.copy(given, dy)
        sums = np.zeros((2, x.shape[1]))
        source, slope, target = address(x), address(dy), address(dx)
        kept = None if memory is None else address(memory)
        for piece in self._pieces(x):
            found, start = np.empty((2, piece.groups, x.shape[1]), np.float32), 4 * piece.start
            first = address(found)
            ins = source + start, slope + start, *numbers.places(piece)
            outs = target + start, first, first + found.nbytes // 2
            operation = self._backward_of_piece(x, piece, eps, kept is not None)
            operation(ins, outs if kept is None else (*outs, kept + piece.start))
            sums += found.sum(axis=1, dtype=np.float64)
        return sums

    def _normalize_piece(self, x: Array, piece: Piece, affine: Affine, eps: float) -> Operation:
        """With a ReLU, for a backward pass."""

        def build() -> Operation:
            layout, channels = self._piece_layout(x, piece), piece.groups * x.shape[1]
            flags = _flags(affine, True) | GLOBAL_STATISTICS
            description = self._describe_batch_norm(layout, eps, flags, dnnl.FORWARD_TRAINING)
            inputs = self._inputs(layout, channels, affine)
            return Operation(self.library, description, inputs, {dnnl.DST: layout}, [dnnl.WORKSPACE])

        return self.operation(("batch norm", *_kind(x, piece), affine is None, eps), build)

    def _backward_of_piece(self, x: Array, piece: Piece, eps: float, relu: bool) -> Operation:
        """By mean and variance as constants, with a scale."""

        def build() -> Operation:
            library, layout, channels = self.library, self._piece_layout(x, piece), piece.groups * x.shape[1]
            flags = USE_SCALE | USE_SHIFT | GLOBAL_STATISTICS | (FUSE_RELU if relu else 0)
            description = library.describe(
                "batch_normalization_backward",
                library.engine,
                c_int(dnnl.BACKWARD),
                layout,
                layout,
                layout,
                c_float(eps),
                c_uint(flags),
                self._describe_batch_norm(layout, eps, flags, dnnl.FORWARD_TRAINING),
                library.attributes(),
            )
            inputs = {dnnl.SRC: layout, dnnl.DIFF_DST: layout}
            inputs |= self._of_channels(channels, dnnl.MEAN, dnnl.VARIANCE, dnnl.SCALE)
            outputs = {dnnl.DIFF_SRC: layout, **self._of_channels(channels, dnnl.DIFF_SCALE, dnnl.DIFF_SHIFT)}
            return Operation(library, description, inputs, outputs, [dnnl.WORKSPACE] * relu)

        return self.operation(("batch norm backward", *_kind(x, piece), eps, relu), build)

    def _add_affine(self, x: Array, y: Array, mean: Array, slope: Array, offset: Array) -> None:
        """y += (x - mean) * slope + offset, per channel; x and y are laid out alike."""
        library, channels = self.library, x.shape[1]

        def build() -> Operation:
            ones = (1,) * (x.ndim - 2)
            layout, each = library.layout(x), Layout(library, (1, channels, *ones), dnnl.F32, (channels, 1, *ones))
            attributes = library.chain([(dnnl.MULTIPLY, each), None, (dnnl.ADD, each)])
            description = library.describe(
                "binary", library.engine, c_int(dnnl.SUBTRACT), layout, each, layout, attributes
            )
            inputs = {dnnl.SRC: layout, dnnl.SRC_1: each}
            return Operation(library, description, inputs, {dnnl.DST: layout}, chained={0: each, 2: each})

        ins = (address(x), address(mean))
        operation = self.operation(("affine added", x.shape, x.strides), build)
        operation(ins, (address(y), address(slope), address(offset)))

    def _describe_batch_norm(self, layout: Layout, eps: float, flags: int, kind: int) -> dnnl.Description:
        library = self.library
        arguments = c_int(kind), layout, layout, c_float(eps), c_uint(flags), library.attributes()
        return library.describe("batch_normalization_forward", library.engine, *arguments)

    def _inputs(self, layout: Layout, channels: int, affine: Affine) -> dict[int, Layout]:
        affine_inputs = (dnnl.SCALE, dnnl.SHIFT) if affine else ()
        return {dnnl.SRC: layout, **self._of_channels(channels, dnnl.MEAN, dnnl.VARIANCE, *affine_inputs)}

    def _of_channels(self, channels: int, *arguments: int) -> dict[int, Layout]:
        return {argument: Layout(self.library, (channels,), dnnl.F32, (1,)) for argument in arguments}

    def _piece_layout(self, x: Array, piece: Piece) -> Layout:
        channels, length = piece.groups * x.shape[1], piece.length
        inner = (1, channels) if _is_channels_last(x) else (length, 1)
        return Layout(self.library, (1, channels, length, 1), dnnl.F32, (channels * length, *inner, inner[1]))

    def _pieces(self, x: Array, longest: int = PIECE) -> Iterator[Piece]:
        """All of x, in pieces; of channels-last arrays a channel of a group has at most `longest` values."""
        values = PIECE * self._threads
        channels, rest = x.shape[1], 1
        if _is_channels_last(x):  # rows of channels
            count = x.size // channels
            step = VECTOR // math.gcd(VECTOR, channels)
            together = max(1, WIDTH // channels // step * step, values // (channels * longest) // step * step)
        else:  # images whose channels are stretches of memory
            count, rest = x.shape[0], x.size // x.shape[0] // channels
            together = max(1, values // (channels * rest))
        most = max(1, values // (channels * rest * together)) * together
        start = 0
        while start < count:
            groups = min(together, count - start)
            taken = min(most, (count - start) // groups * groups)
            yield Piece(start * channels * rest, groups, taken // groups * rest)
            start += taken


class Repeated:
    """Numbers of channels (C,), each as often one after the other as a piece has groups of channels."""

    def __init__(self, *numbers: Array) -> None:
        self._numbers = numbers
        self._found: dict[int, tuple[list[Array], list[int]]] = {}

    def places(self, piece: Piece) -> list[int]:
        if piece.groups not in self._found:
            arrays = [np.tile(each, piece.groups) for each in self._numbers]
            self._found[piece.groups] = arrays, [address(each) for each in arrays]
        return self._found[piece.groups][1]


def _is_channels_last(x: Array) -> bool:
    return bool(channels_last(x).flags.c_contiguous)


def _is_taken(x: Array) -> bool:
    """Whether oneDNN takes it, forward and backward: with spatial axes, several values a channel (the gradient through
    the mean of a single one leaves just 0), and without gaps in memory."""
    return x.ndim > 2 and x.size > x.shape[1] and bool(x.flags.c_contiguous or _is_channels_last(x))


def _kind(x: Array, piece: Piece) -> tuple[Any, ...]:
    """What the operations of a piece depend on."""
    return _is_channels_last(x), x.shape[1], piece.groups, piece.length


def _flags(affine: Affine, relu: bool) -> int:
    return (USE_SCALE | USE_SHIFT if affine else 0) | (FUSE_RELU if relu else 0)
