"""Batch normalisation by oneDNN's primitives, in pieces, with sums whose error does not grow with the number of values.

oneDNN adds each channel's values one after the other in float32, so a mean over 10^5 values loses three digits.
Therefore `fcaffe.engines.channels` computes the moments, and oneDNN normalises with given statistics. In backward
oneDNN gets an array in pieces whose neighbouring rows count as further channels, so each of its sums is over some
hundred values. float64 adds the sums of the pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe.engines.normalization import Normalizer, PlainNormalization, Whole
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.batch_norm_operations import BatchNormOperations
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.operation import SMALL
from fcaffe.engines.onednn.pieces import Repeated, alike, cut_in_pieces, is_channels_last, side_by_side

Array = Any


class BatchNorm(BatchNormOperations, PlainNormalization):
    """Memory for the backward pass has the signs that the ReLU of each piece has found."""

    batch_norm_memory = 0.25
    _threads: int

    if TYPE_CHECKING:

        def copy(self, x: Array, y: Array) -> None: ...
        def relu_forward(self, x: Array, y: Array, slope: float) -> None: ...

    def batch_norm_train(self, x: Array, y: Array, norm: Normalizer, memory: Array) -> None:
        if not _is_taken(x) or not norm.relu:
            self.batch_norm_apply(x, y, norm)
            return
        affine = () if norm.scale is None else (norm.scale, norm.shift)
        numbers = Repeated(norm.mean, norm.variance, *affine)
        with self._lying_like(x, y) as out:
            source, target, signs = address(x), address(out), address(memory)
            pieces = cut_in_pieces(x, self._threads)
            made = alike(pieces, lambda piece: self._normalize_piece(x, piece, bool(affine), norm.eps).as_it_is())
            for piece, normalize in zip(pieces, made, strict=True):
                start = x.itemsize * piece.start
                normalize(source + start, *numbers.addresses(piece), target + start, signs + piece.start)
        undefined = ~np.isfinite(sum(affine, norm.mean + norm.variance))
        if undefined.any():  # there oneDNN's ReLU has written 0 for NaN
            arrays = {name: each[undefined] for name, each in norm._asdict().items() if isinstance(each, np.ndarray)}
            part = np.empty_like(x[:, undefined])
            super().batch_norm_apply(x[:, undefined], part, norm._replace(**arrays))
            y[:, undefined] = part

    def batch_norm_apply(self, x: Array, y: Array, norm: Normalizer) -> None:
        if not _is_taken(x):
            super().batch_norm_apply(x, y, norm)
            return
        deviation = np.sqrt(norm.variance + np.float32(norm.eps))
        steps = [(dnnl.SUBTRACT, norm.mean)]
        if norm.scale is None:
            steps.append((dnnl.DIVIDE, deviation))
        else:
            steps += [(dnnl.MULTIPLY, norm.scale / deviation), (dnnl.ADD, norm.shift)]
        self.along_channels(x, y, steps, norm.relu)

    def batch_norm_add_relu(self, x: Array, other: Array, y: Array, norm: Normalizer) -> None:
        alike = x.strides == other.strides == y.strides
        if norm.scale is None or x.size < SMALL or not (alike and _is_taken(x)):
            super().batch_norm_add_relu(x, other, y, norm)
            return
        factor = norm.scale / np.sqrt(norm.variance + np.float32(norm.eps))
        self._normalized_sum(x, (norm.mean, factor, norm.shift), other, y)

    def batch_norm_train_backward(
        self,
        x: Array,
        dy: Array,
        dx: Array,
        norm: Normalizer,
        gradients: Sequence[Array],
        memory: Array,
        whole: Whole | None = None,
    ) -> None:
        """First dx with mean and variance as constants, and all sums; then the gradient through mean and variance.

        As in the forward pass, x alone selects the routine, since `memory` is in the order of x.
        """
        if not _is_taken(x):
            super().batch_norm_train_backward(x, dy, dx, norm, gradients, memory, whole)
            return
        scale = np.ones_like(norm.mean) if norm.scale is None else norm.scale
        numbers = Repeated(norm.mean, norm.variance, scale)
        with self._lying_like(x, dx) as out:
            sums = self._backward_by_constants(x, dy, out, numbers, norm.eps, memory if norm.relu else None)
            if gradients:
                gradients[0][...], gradients[1][...] = sums
            count: float = x.size // x.shape[1]
            sums *= scale  # as in the plain operator, which other workers may have taken for their parts
            if whole is not None:
                count, sums = whole.values, whole.sum(sums)
            deviation = np.sqrt(norm.variance + np.float64(norm.eps))
            dscale, dshift = sums / deviation / count
            self._add_affine(x, out, norm.mean, (-dscale / deviation).astype(np.float32), (-dshift).astype(np.float32))

    def scale_channels(self, x: Array, y: Array, scale: Array, shift: Array, relu: bool = False) -> None:
        if not _is_taken(x) or x.size < SMALL:
            super().scale_channels(x, y, scale, shift)
            if relu:
                self.relu_forward(y, y, 0)
            return
        self.along_channels(x, y, [(dnnl.MULTIPLY, scale), (dnnl.ADD, shift)], relu)

    def along_channels(self, x: Array, y: Array, steps: Sequence[tuple[int, Array]], relu: bool) -> None:
        """y = x after these steps, then ReLU with `relu`. A step is a binary operation with an array (C,).

        Every step rounds, as in Caffe. oneDNN's batch normalisation would round a product and a sum once.
        """
        if not steps:
            self.relu_forward(x, y, 0) if relu else self.copy(x, y)
            return
        kinds, numbers = zip(*steps, strict=True)
        together = side_by_side(x)
        with self._lying_like(x, y) as out:
            repeated = [np.tile(each, together) for each in numbers] if together > 1 else numbers
            first, *others = map(address, repeated)
            self._steps(x, kinds, together, relu)((address(x), first), (address(out), *others))

    def scale_channels_backward(
        self, x: Array, dy: Array, dx: Array, scale: Array, dscale: Array, dshift: Array
    ) -> None:
        if not _is_taken(x) or x.size < SMALL:
            super().scale_channels_backward(x, dy, dx, scale, dscale, dshift)
            return
        numbers = Repeated(np.zeros_like(scale), np.ones_like(scale), scale)
        with self._lying_like(x, dx) as out:
            dscale[...], dshift[...] = self._backward_by_constants(x, dy, out, numbers, 0.0, None)

    @contextlib.contextmanager
    def _lying_like(self, x: Array, y: Array) -> Iterator[Array]:
        """An array with the layout of x, whose values are in y after the body."""
        out = y if y.strides == x.strides else np.empty_like(x)
        yield out
        if out is not y:
            self.copy(out, y)

    def _backward_by_constants(
        self, x: Array, dy: Array, dx: Array, numbers: Repeated, eps: float, memory: Array | None
    ) -> Array:
        """Write dx, laid out like x, with mean and variance as constants. `memory` is that of a following ReLU.

        Returns the gradients of scale and shift, (2, C) in float64.
        """
        if dy.strides != x.strides:
            given, dy = dy, np.empty_like(x)
            self.copy(given, dy)
        sums = np.zeros((2, x.shape[1]))
        source, slope, target = address(x), address(dy), address(dx)
        kept = None if memory is None else address(memory)
        pieces = cut_in_pieces(x, self._threads)
        made = alike(pieces, lambda piece: self._backward_of_piece(x, piece, eps, kept is not None).as_it_is())
        found = np.empty((2, max(piece.groups for piece in pieces), x.shape[1]), np.float32)
        first = address(found)
        for piece, backward in zip(pieces, made, strict=True):
            start, second = x.itemsize * piece.start, piece.groups * x.shape[1]
            addresses = source + start, slope + start, *numbers.addresses(piece)
            addresses += target + start, first, first + second * found.itemsize
            backward(*addresses, *(() if kept is None else (kept + piece.start,)))
            of_piece = found.reshape(-1)[: 2 * second].reshape(2, piece.groups, -1)
            sums += of_piece.sum(axis=1, dtype=np.float64)
        return sums


def _is_taken(x: Array) -> bool:
    """Whether oneDNN computes it, forward and backward: dense arrays with spatial axes and several values per channel.

    (The gradient through the mean of a single value is 0.)
    """
    return x.ndim > 2 and x.size > x.shape[1] and bool(x.flags.c_contiguous or is_channels_last(x))
