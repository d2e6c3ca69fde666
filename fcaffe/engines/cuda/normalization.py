"""Local response normalisation across channels, and batch normalisation, by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fcaffe.engines.cuda.kernels import MOST_BLOCKS, THREADS
from fcaffe.engines.cuda.operands import FLOAT, NULL, Operands, common_type, pack_of
from fcaffe.engines.formulas import Formula
from fcaffe.engines.memory import Array
from fcaffe.engines.normalization import Normalizer, PlainNormalization, Whole

SOURCE = "normalization"

MULTIPROCESSORS = 132  # of an H100 or H200; on any device sums have as many parts, so that bits are the same
FORWARD, BACKWARD = 4 * MULTIPROCESSORS, 3 * MULTIPROCESSORS  # blocks of batch normalisation, all running at once
ROWS_AT_ONCE = 4  # that a thread loads at a time
MEAN = Formula("shift + total / count")
VARIANCE = Formula("max(squares / count - (total / count) ** 2, 0)")


class Normalization(Operands, PlainNormalization):
    """Arrays are best channels-last and of one type; others are copied first. Sums are float32 and have one order."""

    lrn_memory = 0

    def lrn_forward(
        self, x: Array, y: Array, memory: Array | None, size: int, alpha: float, beta: float, k: float
    ) -> None:
        self._lrn("lrn_forward", [x], y, size, alpha / size, beta, k)

    def lrn_backward(
        self, x: Array, memory: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float, k: float
    ) -> None:
        self._lrn("lrn_backward", [x, dy], dx, size, alpha / size, beta, k, 2 * alpha * beta / size)

    def _lrn(self, kernel: str, given: list[Array], result: Array, size: int, *numbers: float) -> None:
        if not result.size:
            return
        dtype = common_type(*given, result)
        arrays, out = [self.operand(array, dtype) for array in given], self.result(result, dtype)
        split = _split(out, 1, MOST_BLOCKS)
        sizes = *split.sizes, np.int32(size // 2)
        self._launch(kernel, (dtype,), split, *arrays, out, *sizes, *map(np.float32, numbers))
        self.deliver(out, result)

    def batch_norm_moments(self, x: Array, mean: Array, variance: Array) -> None:
        if not x.size:
            super().batch_norm_moments(x, mean, variance)
            return
        x = self.operand(x, common_type(x))
        channels, pack = x.shape[1], pack_of(x.shape[1], x)
        split = _split(x, pack, FORWARD)
        partial, shift = self.xp.empty((split.blocks[0], 2, channels), FLOAT), self.xp.empty(channels, FLOAT)
        self._launch("batch_norm_moments", (x.dtype, pack), split, x, partial, shift, *split.sizes)
        total, squares = partial.sum(axis=0)
        sums = {"shift": shift, "total": total, "squares": squares, "count": np.float32(x.size // channels)}
        self.pointwise(MEAN, sums, mean)
        self.pointwise(VARIANCE, sums, variance)

    def batch_norm_apply(self, x: Array, y: Array, norm: Normalizer) -> None:
        self._apply([x], y, norm)

    def batch_norm_add_relu(self, x: Array, other: Array, y: Array, norm: Normalizer) -> None:
        self._apply([x, other], y, norm._replace(relu=True))

    def _apply(self, terms: list[Array], y: Array, norm: Normalizer) -> None:
        """The first term is normalised; the second, if there is one, is added before ReLU."""
        if not y.size:
            return
        dtype = common_type(*terms, y)
        terms, out = [self.operand(term, dtype) for term in terms], self.result(y, dtype)
        pack = pack_of(y.shape[1], *terms, out)
        split = _split(out, pack, FORWARD)
        arrays = *terms, *[NULL] * (2 - len(terms)), out
        self._launch("batch_norm_apply", (dtype, pack), split, *arrays, *_arguments(norm), *split.sizes)
        self.deliver(out, y)

    def batch_norm_train_backward(
        self, x: Array, dy: Array, dx: Array, norm: Normalizer, gradients: Sequence[Array], whole: Whole | None = None
    ) -> None:
        if not x.size:
            super().batch_norm_train_backward(x, dy, dx, norm, gradients, whole)
            return
        dtype, channels, count = common_type(x, dy, dx), x.shape[1], x.size // x.shape[1]
        x, dy, out = self.operand(x, dtype), self.operand(dy, dtype), self.result(dx, dtype)
        pack = pack_of(channels, x, dy, out)
        split = _split(x, pack, BACKWARD)
        arguments = *_arguments(norm), *split.sizes
        partial = self.xp.empty((split.blocks[0], 2, channels), FLOAT)
        self._launch("batch_norm_gradient_sums", (dtype, pack), split, x, dy, partial, *arguments)
        sums = partial.sum(axis=0)  # the gradients of shift and scale
        for gradient, total in zip(gradients, (sums[1], sums[0]), strict=False):
            gradient[...] = total
        if whole is not None:
            count, sums = whole.values, whole.sum(sums)
        self._launch("batch_norm_gradient", (dtype, pack), split, x, dy, out, sums / count, *arguments)
        self.deliver(out, dx)

    def _launch(self, kernel: str, types: tuple[Any, ...], split: Split, *args: Any) -> None:
        self.kernels.launch(SOURCE, kernel, types, split.blocks, split.threads, *args)


def _arguments(norm: Normalizer) -> tuple[Any, ...]:
    """NORMALIZER in normalization.cu."""
    scale, shift = (NULL, NULL) if norm.scale is None else (norm.scale, norm.shift)
    return norm.mean, norm.variance, scale, shift, np.float32(norm.eps), np.int32(norm.relu)


class Split(NamedTuple):
    """How blocks and threads divide an array's rows of channels; see normalization.cu."""

    blocks: tuple[int, int]  # parts of rows, groups of channels
    threads: tuple[int, int]
    sizes: tuple[np.int64, np.int32, np.int64]  # rows, channels, rows of a part


def _split(x: Array, pack: int, most_blocks: int) -> Split:
    """x (N, C, spatial...) in parts of equal length, `pack` channels to a thread."""
    channels, rows = x.shape[1], x.size // x.shape[1]
    packs = -(-channels // pack)
    widths = (32, 16, 8) if packs > 4 else (4, 2, 1)
    width = min(widths, key=lambda width: -(-packs // width) * width)  # with the fewest idle threads
    groups, height = -(-packs // width), THREADS // width
    parts = min(-(-rows // (height * ROWS_AT_ONCE)), -(-most_blocks // groups))
    part = -(-rows // (parts * height)) * height
    return Split((-(-rows // part), groups), (width, height), (np.int64(rows), np.int32(channels), np.int64(part)))
