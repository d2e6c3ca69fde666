"""The CPU engine that computes convolutions with fewer multiplications, by Winograd's transforms."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np

from fcaffe.engines.convolution import Fold
from fcaffe.engines.memory import Array, address
from fcaffe.engines.onednn.engine import OneDnnEngine
from fcaffe.engines.windows import Windows
from fcaffe.engines.winograd import blocks
from fcaffe.engines.winograd.compiling import SETTINGS, announce
from fcaffe.engines.winograd.transforms import CHANNELS, KERNELS
from fcaffe.engines.winograd.vectors import FEW_ROWS
from fcaffe.errors import UsageError
from fcaffe.threads import wanted_threads

# The least ratio of multiplications, direct to transformed: for a convolution, and for the gradient of its weights.
# Transforming the kernels takes as long as the products of TILES_OF_KERNELS tiles.
LEAST_SAVING, LEAST_OF_GRADIENT, TILES_OF_KERNELS = 1.8, 1.5, 26
LEAST_WORK = 40_000_000  # direct multiplications; a tape cannot replay these calls, so each takes 0.1 ms longer

# Stands for no addend. It is channels-last as the others are, since Numba compiles for each memory order.
NO_ARRAY = np.moveaxis(np.empty((2, 2, 2, 2), np.float32), -1, 1)
KERNELS_USE, TILE_USES = -1, (-2, -3)  # of temporary memory: transformed kernels; transformed tiles and products


class WinogradEngine(OneDnnEngine):
    """The oneDNN engine, except for convolutions with 3x3 or 5x5 kernels and stride 1; see `suits`.

    The choice of the algorithm depends on the convolution's shape alone, so it is the same in every run and on all
    workers. An output that is not finite makes the other outputs of its tile, of 4x4 or 2x2 pixels, NaN.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.name += " (Winograd)"
        self._numba_threads = min(wanted_threads(), SETTINGS.NUMBA_NUM_THREADS)
        _check_process()
        with self.library.threads.one():
            numba.set_num_threads(1)  # starts Numba's threads, which sets OpenMP's number to that of all cores

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        if not suits(weights, y, windows, group, LEAST_SAVING):
            super().convolution_forward(x, weights, bias, y, windows, group, relu)
            return
        with self.library.lock, self.dense([x], [y]) as (x_, y_):
            kernels = self.of_weights("Winograd", lambda: self._transform(weights, group, cached=True), weights)
            if kernels is None:
                kernels = self._transform(weights, group)
            self._convolve(x_, kernels, bias, relu, y_, windows)

    def folded_convolution(
        self,
        x: Array,
        weights: Array,
        fold: Fold,
        y: Array,
        windows: Windows,
        group: int,
        relu: bool,
        plus: Array | None,
    ) -> bool:
        if not suits(weights, y, windows, group, LEAST_SAVING) or (plus is not None and address(plus) == address(y)):
            return super().folded_convolution(x, weights, fold, y, windows, group, relu, plus)

        def derive() -> tuple[Array, Array]:
            folded, bias = fold()
            return self._transform(np.ascontiguousarray(folded), group, cached=True), bias

        found = self.of_weights("Winograd", derive)
        if found is None:
            return False
        with self.library.lock, self.dense([x] if plus is None else [x, plus], [y]) as (x_, *addends, y_):
            self._convolve(x_, *found, relu, y_, windows, *addends)
        return True

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        if not suits(weights, dy, windows, group, LEAST_SAVING) or max(windows.pad) >= windows.kernel[0]:
            super().convolution_backward_data(dy, weights, dx, windows, group)
            return
        with self.library.lock, self.dense([dy], [dx]) as (dy_, dx_):
            kernels = self._transform(weights, group, turned=True)
            pad = tuple(windows.kernel[0] - 1 - pad for pad in windows.pad)
            self._convolve(dy_, kernels, None, False, dx_, replace(windows, pad=pad))

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        if not suits(dweights, dy, windows, group, LEAST_OF_GRADIENT):
            super().convolution_backward_weights(x, dy, dweights, windows, group, add)
            return
        with self.library.lock, self.dense([x, dy], []) as (x_, dy_):
            shape = _shape(dy.shape[1] // group, dweights.shape[1] + FEW_ROWS)
            gradient = self.library.temporary_array(KERNELS_USE, shape)
            parts = [np.split(array, group, axis=1) for array in (x_, dy_)]
            for x_, dy_, own in zip(*parts, np.split(dweights, group), strict=True):
                work = self._work(x_, dy_, windows)
                self._run(blocks.kernel_gradient, x_, dy_, gradient, windows.kernel[0], windows.pad, *work)
                self._run(blocks.gradient_of_kernels, gradient, add, own, self._numba_threads)

    def _convolve(
        self, x: Array, kernels: Array, bias: Array | None, relu: bool, y: Array, windows: Windows, *addends: Array
    ) -> None:
        """x, y and at most one addend are channels-last. `kernels` has the transformed kernels of each group."""
        biases = np.split(np.zeros(y.shape[1], np.float32) if bias is None else bias, len(kernels))
        parts = [np.split(array, len(kernels), axis=1) for array in (x, y, *addends)]
        for own, bias, x_, y_, *plus in zip(kernels, biases, *parts, strict=True):
            ends = x_, own, bias, *(plus or [NO_ARRAY]), relu, y_
            self._run(blocks.convolve, *ends, windows.kernel[0], windows.pad, *self._work(x_, y_, windows))

    def _work(self, x: Array, y: Array, windows: Windows) -> list[Array]:
        """Buffers of all threads: one for transformed tiles of x, one for products or transformed tiles of y."""
        tiles = min(blocks.tile_count.py_func(y, windows.kernel[0]), blocks.BLOCK_TILES)
        first_axes = self._numba_threads, blocks.VALUES, -(-tiles // FEW_ROWS) * FEW_ROWS | 1
        widths = [(-(-array.shape[1] // CHANNELS) | 1) * CHANNELS for array in (x, y)]
        pairs = zip(TILE_USES, widths, strict=True)
        return [self.library.temporary_array(use, (*first_axes, width)) for use, width in pairs]

    def _transform(self, weights: Array, group: int, turned: bool = False, cached: bool = False) -> Array:
        """The transformed kernels of each group: in a new array with `cached`, otherwise in temporary memory."""
        outputs, inputs = weights.shape[0] // group, weights.shape[1]
        shape = group, *(_shape(inputs, outputs) if turned else _shape(outputs, inputs))
        target = np.empty(shape, np.float32) if cached else self.library.temporary_array(KERNELS_USE, shape)
        for own, kernels in zip(np.split(weights, group), target, strict=True):
            self._run(blocks.transform_kernels, own, turned, kernels, self._numba_threads)
        return target

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call compiled code. Numba's number of threads is a setting of the calling thread.

        A tape cannot record these calls. `Replay` runs a layer itself if recording it raises ValueError.
        """
        if self.library.tape is not None:
            raise ValueError("calls of compiled code are not recorded")
        _check_process()
        announce()
        numba.set_num_threads(self._numba_threads)
        work(*arguments)


@functools.cache
def _first_process() -> int:
    """The process that has started Numba's threads."""
    return os.getpid()


def _check_process() -> None:
    """Raise UsageError in a forked process: Numba's threads, which are OpenMP's, would end it."""
    if _first_process() != os.getpid():
        raise UsageError(
            "--math winograd cannot compute in a process forked from one that has used it: start it by "
            'multiprocessing.get_context("spawn"), or use another --math'
        )


def suits(weights: Array, y: Array, windows: Windows, group: int, least: float) -> bool:
    """Whether the transforms apply and pay.

    They apply to 3x3 or 5x5 kernels with stride 1 and no dilation. They pay if there are at least 16 or 32 channels and
    LEAST_WORK multiplications, and the direct algorithm has at least `least` times as many multiplications.
    """
    if windows.kernel not in [(size, size) for size in KERNELS]:
        return False
    direct = y.shape[0] * math.prod(y.shape[2:]) * windows.size
    return (
        set(windows.stride + windows.dilation) == {1}
        and min(weights.shape[0] // group, weights.shape[1]) >= CHANNELS * (windows.kernel[0] // 2)
        and y.size * weights[0].size >= LEAST_WORK
        and direct >= least * blocks.VALUES * (blocks.tile_count.py_func(y, windows.kernel[0]) + TILES_OF_KERNELS)
    )


def _shape(outputs: int, rows: int) -> tuple[int, ...]:
    """The shape of 36 matrices in panels of CHANNELS outputs, with an odd number of lines."""
    return blocks.VALUES, -(-outputs // CHANNELS) * rows | 1, CHANNELS
