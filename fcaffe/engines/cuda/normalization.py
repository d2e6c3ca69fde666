"""Local response normalisation across channels, and batch normalisation, by our own kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fcaffe.engines.cuda.kernels import MOST_BLOCKS, THREADS, blocks_for
from fcaffe.engines.cuda.packs import FLOAT, NULL, Packs, common_type, pack_of
from fcaffe.engines.normalization import Affine, PlainNormalization, Whole

Array = Any

MULTIPROCESSORS = 132  # of an H100 or H200; sums are made in parts for so many on any device, so as to be the same
FORWARD, BACKWARD = 4 * MULTIPROCESSORS, 3 * MULTIPROCESSORS  # blocks of batch normalisation, all running at once
ROWS_AT_ONCE = 4  # that a thread loads at a time: it is not worth having with less
COLUMNS = 32  # channels of a block that finishes sums
UNROLLED = 5  # the size of LRN windows that kernels are unrolled for


class Normalization(Packs, PlainNormalization):
    """Arrays are best channels-last and of one type; others are copied first. Sums are float32 and have one order."""

    lrn_memory = 0

    def lrn_forward(
        self, x: Array, y: Array, memory: Array | None, size: int, alpha: float, beta: float, k: float
    ) -> None:
        if not x.size:
            return
        dtype = common_type(x, y)
        x, out = self.operand(x, dtype), self.result(y, dtype)
        types, split, half = _lrn_kernel(size, x, out)
        numbers = (np.float32(alpha / size), np.float32(beta), np.float32(k))
        self._launch("lrn_forward", types, split, x, out, *split.sizes, half, *numbers)
        self.deliver(out, y)

    def lrn_backward(
        self, x: Array, y: Array, memory: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float, k: float
    ) -> None:
        if not x.size:
            return
        dtype = common_type(x, dy, dx)
        x, dy, out = self.operand(x, dtype), self.operand(dy, dtype), self.result(dx, dtype)
        types, split, half = _lrn_kernel(size, x, dy, out)
        numbers = (alpha / size, beta, k, 2 * alpha * beta / size)
        self._launch("lrn_backward", types, split, x, dy, out, *split.sizes, half, *map(np.float32, numbers))
        self.deliver(out, dx)

    def batch_norm_moments(self, x: Array, mean: Array, variance: Array) -> None:
        if not x.size:
            super().batch_norm_moments(x, mean, variance)
            return
        x = self.operand(x, common_type(x))
        channels, pack = x.shape[1], pack_of(x.shape[1], x)
        split = _split(x, pack, FORWARD)
        partial = self.xp.empty((split.parts, 2, channels), FLOAT)
        self._launch("batch_norm_moments", (x.dtype, pack), split, x, partial, *split.sizes)
        self._finish("moments", partial, mean, variance, *split.sizes)

    def add_to_statistics(
        self, sums: tuple[Array, Array, Array], mean: Array, variance: Array, unbiased: float, fraction: float
    ) -> None:
        channels, numbers = mean.size, (np.float32(unbiased), np.float32(fraction))
        args = (*sums, mean, variance, *numbers, np.int32(channels))
        self.kernels.launch("normalization", "add_to_statistics", (), blocks_for(channels), THREADS, *args)

    def batch_norm_apply(
        self, x: Array, y: Array, mean: Array, variance: Array, affine: Affine, eps: float, relu: bool
    ) -> None:
        self._normalize(x, None, y, (mean, variance, *(affine or (NULL, NULL)), np.float32(eps), np.int32(relu)))

    def batch_norm_add_relu(
        self, x: Array, other: Array, y: Array, mean: Array, variance: Array, affine: Affine, eps: float
    ) -> None:
        self._normalize(x, other, y, (mean, variance, *(affine or (NULL, NULL)), np.float32(eps), np.int32(True)))

    def _normalize(self, x: Array, other: Array | None, y: Array, factors: tuple[Any, ...]) -> None:
        if not x.size:
            return
        others = [] if other is None else [other]
        dtype = common_type(x, y, *others)
        x, out, others = self.operand(x, dtype), self.result(y, dtype), [self.operand(each, dtype) for each in others]
        pack = pack_of(x.shape[1], x, out, *others)
        split = _split(x, pack, FORWARD)
        arrays = x, *(others or [NULL]), out
        self._launch("batch_norm_apply", (dtype, pack, bool(others)), split, *arrays, *factors, *split.sizes)
        self.deliver(out, y)

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
        whole: Whole | None = None,
    ) -> None:
        if not x.size:
            super().batch_norm_train_backward(x, dy, dx, mean, variance, affine, gradients, eps, relu, memory, whole)
            return
        dtype = common_type(x, dy, dx)
        x, dy = self.operand(x, dtype), self.operand(dy, dtype)
        factors = (mean, variance, *(affine or (NULL, NULL)))
        dscale, dshift = gradients or self.xp.empty((2, x.shape[1]), FLOAT)
        self._gradient_sums(x, dy, dshift, dscale, factors, eps, relu)
        self._gradient(x, dy, dx, dshift, dscale, factors, eps, relu, whole)

    def batch_norm_add_relu_backward(
        self,
        x: Array,
        y: Array,
        dys: list[Array],
        dother: Array,
        dx: Array,
        mean: Array,
        variance: Array,
        affine: Affine,
        gradients: Affine,
        eps: float,
        memory: Array,
        whole: Whole | None = None,
    ) -> None:
        if not x.size:
            numbers = mean, variance, affine, gradients, eps, memory
            super().batch_norm_add_relu_backward(x, y, dys, dother, dx, *numbers, whole)
            return
        dtype = common_type(x, y, *dys, dother, dx)
        x, y, total = self.operand(x, dtype), self.operand(y, dtype), self.result(dother, dtype)
        dys = [self.operand(dy, dtype) for dy in dys]
        dscale, dshift = gradients or self.xp.empty((2, x.shape[1]), FLOAT)
        pack = pack_of(x.shape[1], x, y, total, *dys)
        split = _split(x, pack, BACKWARD)
        partial = self.xp.empty((split.parts, 2, x.shape[1]), FLOAT)
        arrays = x, y, dys[0], dys[-1], total, partial, mean, variance
        self._launch(
            "batch_norm_total_sums", (dtype, pack, len(dys) > 1), split, *arrays, np.float32(eps), *split.sizes
        )
        self._finish("sums", partial, dshift, dscale, np.int32(x.shape[1]))
        self.deliver(total, dother)
        factors = (mean, variance, *(affine or (NULL, NULL)))
        self._gradient(x, total, dx, dshift, dscale, factors, eps, False, whole)

    def _gradient_sums(
        self, x: Array, dy: Array, dshift: Array, dscale: Array, factors: tuple[Any, ...], eps: float, relu: bool
    ) -> None:
        """The sums of dy, and of dy times normalised x, into the two float32 arrays (C,).

        `factors` are mean, variance, scale and shift.
        """
        channels, pack = x.shape[1], pack_of(x.shape[1], x, dy)
        split = _split(x, pack, BACKWARD)
        partial = self.xp.empty((split.parts, 2, channels), FLOAT)
        arrays, numbers = (x, dy, partial, *factors), (np.float32(eps), np.int32(relu), *split.sizes)
        self._launch("batch_norm_gradient_sums", (x.dtype, pack), split, *arrays, *numbers)
        self._finish("sums", partial, dshift, dscale, np.int32(x.shape[1]))

    def _finish(self, what: str, partial: Array, first: Array, second: Array, *sizes: Any) -> None:
        """Add up those of all parts (parts, 2, C) into two arrays (C,)."""
        args = partial, first, second, *sizes, np.int32(len(partial))
        blocks, threads = -(-first.size // COLUMNS), (COLUMNS, 32)
        self.kernels.launch("normalization", f"batch_norm_finish_{what}", (), blocks, threads, *args)

    def _gradient(
        self,
        x: Array,
        dy: Array,
        dx: Array,
        dshift: Array,
        dscale: Array,
        factors: tuple[Any, ...],
        eps: float,
        relu: bool,
        whole: Whole | None,
    ) -> None:
        count: float = x.size // x.shape[1]
        if whole is not None:
            count, (dscale, dshift) = whole.values, whole.sum(self.xp.stack([dscale, dshift]))
        out = self.result(dx, x.dtype)
        pack = pack_of(x.shape[1], x, dy, out)
        split = _split(x, pack, BACKWARD)
        numbers = (np.float32(eps), np.int32(relu), np.float32(1 / max(1, count)), *split.sizes)
        arrays = (x, dy, out, *factors, dshift, dscale)
        self._launch("batch_norm_gradient", (x.dtype, pack), split, *arrays, *numbers)
        self.deliver(out, dx)

    def _launch(self, kernel: str, types: tuple[Any, ...], split: Split, *args: Any) -> None:
        self.kernels.launch("normalization", kernel, types, split.blocks, split.threads, *args)


class Split(NamedTuple):
    """Who does what of an array's rows of channels; see normalization.cu."""

    blocks: tuple[int, int]
    threads: tuple[int, int]
    sizes: tuple[np.int64, np.int32, np.int64]  # rows, channels, rows of a part

    @property
    def parts(self) -> int:
        return self.blocks[0]


def _split(x: Array, pack: int, most_blocks: int) -> Split:
    """x (N, C, spatial...) in parts of equal length, `pack` channels to a thread."""
    channels, rows = x.shape[1], x.size // x.shape[1]
    packs = -(-channels // pack)
    widths = (32, 16, 8) if packs > 4 else (4, 2, 1)
    width = min(widths, key=lambda width: -(-packs // width) * width)  # the fewest threads that have nothing to do
    groups, height = -(-packs // width), THREADS // width
    parts = min(-(-rows // (height * ROWS_AT_ONCE)), -(-most_blocks // groups))
    part = -(-rows // (parts * height)) * height
    return Split((-(-rows // part), groups), (width, height), (np.int64(rows), np.int32(channels), np.int64(part)))


def _lrn_kernel(size: int, *arrays: Array) -> tuple[tuple[Any, ...], Split, np.int32]:
    """Template arguments, grid, and half of the window."""
    x = arrays[0]
    pack = pack_of(x.shape[1], *arrays) if size == UNROLLED else 1
    half = size // 2 if pack > 1 else 0
    return (x.dtype, pack, half), _split(x, pack, MOST_BLOCKS), np.int32(size // 2)
