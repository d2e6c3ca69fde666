"""Maximum and average pooling by oneDNN's primitives."""

from __future__ import annotations

import functools
from ctypes import c_int
from typing import Any

import numpy as np

from fcaffe.engines.memory import Array
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.convolution import geometry
from fcaffe.engines.onednn.library import BFLOAT16
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.primitives import Description, dims
from fcaffe.engines.pooling import PlainPooling
from fcaffe.engines.windows import Windows

MAX, AVERAGE = 0x1FF, 0x2FF  # dnnl_pooling_max, dnnl_pooling_avg_include_padding


class Pooling(Operations, PlainPooling):
    """x (N, C, H, W), y (N, C, output_size...). `memory`, of y's shape, holds oneDNN's workspace for backward.

    The workspace is that of channels-last arrays, however x, y and their gradients lie: they may lie otherwise in the
    backward pass than in the forward pass before.
    """

    def max_pool_forward(self, x: Array, y: Array, memory: Array | None, windows: Windows) -> None:
        if not self._fits(x, y, windows):
            super().max_pool_forward(x, y, memory, windows)
            return

        outs = (address(y),) if memory is None else (address(y), address(memory))
        self._pooling(MAX, x, y, windows, memory is not None)((address(x),), outs)

    def max_pool_backward(self, dy: Array, memory: Array, dx: Array, windows: Windows) -> None:
        if not self._fits(dx, dy, windows):
            super().max_pool_backward(dy, memory, dx, windows)
            return

        self._pooling_backward(MAX, dy, dx, windows)((address(dy),), (address(dx), address(memory)))

    def max_pool_with_indices(self, x: Array, y: Array, mask: Array, windows: Windows) -> None:
        with self.dense([x], [y, mask]) as (x_, y_, mask_):
            super().max_pool_with_indices(x_, y_, mask_, windows)

    def index_backward(self, dy: Array, mask: Array, dx: Array, windows: Windows) -> None:
        with self.dense([dy, mask], [dx]) as (dy_, mask_, dx_):
            super().index_backward(dy_, mask_, dx_, windows)

    def average_pool_forward(self, x: Array, y: Array, windows: Windows) -> None:
        if not self._fits(x, y, windows):
            with self.dense([x], [y]) as (x_, y_):
                super().average_pool_forward(x_, y_, windows)
            return
        correction = self._correction(x, y, windows)
        if correction is not None and x.dtype == BFLOAT16:
            with self.in_float32([x], [y]) as (x_, y_):
                self.average_pool_forward(x_, y_, windows)
            return
        self._pooling(AVERAGE, x, y, windows)((address(x),), (address(y),))
        if correction is not None:
            np.multiply(y, correction, out=y)

    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
        if not self._fits(dx, dy, windows):
            with self.dense([dy], [dx]) as (dy_, dx_):
                super().average_pool_backward(dy_, dx_, windows)
            return
        correction = self._correction(dx, dy, windows)
        if correction is not None and dy.dtype == BFLOAT16:
            with self.in_float32([dy], [dx]) as (dy_, dx_):
                self.average_pool_backward(dy_, dx_, windows)
            return
        if correction is not None:
            dy = np.multiply(dy, correction)
        self._pooling_backward(AVERAGE, dy, dx, windows)((address(dy),), (address(dx),))

    def _fits(self, x: Array, y: Array, windows: Windows) -> bool:
        """Whether every window has an element of x; oneDNN takes no others."""
        return x.size > 0 and _all_inside(x.shape[2:], y.shape[2:], windows)

    def _correction(self, x: Array, y: Array, windows: Windows) -> Array | None:
        """(H', W'): a factor, since oneDNN divides by the whole window even where that goes beyond the padding."""
        if not _any_beyond(x.shape[2:], y.shape[2:], windows):
            return None
        return np.float32(windows.size) / windows.areas(np, x.shape[2:], y.shape[2:])

    def _pooling(self, kind: int, x: Array, y: Array, windows: Windows, saves: bool = False) -> Operation:
        """The operation of a forward pass, which with `saves` writes the workspace too."""

        def build() -> Operation:
            inputs, outputs = {dnnl.SRC: self.library.layout(x)}, {dnnl.DST: self.library.layout(y)}
            description = self._describe(kind, x, y, windows, saves or kind == AVERAGE)
            return Operation(self.library, description, inputs, outputs, [dnnl.WORKSPACE] * saves)

        return self.operation(("pooling", kind, x.shape, x.strides, y.shape, y.strides, windows, saves), build, (x, y))

    def _pooling_backward(self, kind: int, dy: Array, dx: Array, windows: Windows) -> Operation:
        def build() -> Operation:
            library = self.library
            description = library.describe(
                "pooling_backward",
                library.engine,
                c_int(kind),
                library.channels_last(dx),
                library.channels_last(dy),
                *_geometry(windows, dx, dy),
                self._describe(kind, dx, dy, windows),
                library.attributes(),
            )
            inputs, outputs = {dnnl.DIFF_DST: library.layout(dy)}, {dnnl.DIFF_SRC: library.layout(dx)}
            return Operation(library, description, inputs, outputs, [dnnl.WORKSPACE] * (kind == MAX))

        key = ("pooling backward", kind, dx.shape, dx.strides, dy.shape, dy.strides, windows)
        return self.operation(key, build, () if windows.overlap() else (dx, dy))

    def _describe(self, kind: int, x: Array, y: Array, windows: Windows, training: bool = True) -> Description:
        return self.library.describe(
            "pooling_forward",
            self.library.engine,
            c_int(dnnl.FORWARD_TRAINING if training else dnnl.FORWARD_INFERENCE),
            c_int(kind),
            self.library.channels_last(x),
            self.library.channels_last(y),
            *_geometry(windows, x, y),
            self.library.attributes(),
        )


def _geometry(windows: Windows, x: Array, y: Array) -> list[Any]:
    strides, dilations, before, behind = geometry(windows, x.shape[2:], y.shape[2:])
    return [strides, dims(windows.kernel), dilations, before, behind]


@functools.lru_cache(1024)
def _all_inside(size: tuple[int, ...], output_size: tuple[int, ...], windows: Windows) -> bool:
    """Whether every window begins before the end of the image."""
    axes = zip(size, output_size, windows.stride, windows.pad, strict=True)
    return all((o - 1) * s - p < n for n, o, s, p in axes)


@functools.lru_cache(1024)
def _any_beyond(size: tuple[int, ...], output_size: tuple[int, ...], windows: Windows) -> bool:
    """Whether a window goes beyond the padding behind the image."""
    axes = zip(size, output_size, windows.kernel, windows.stride, windows.pad, strict=True)
    return any((o - 1) * s + k > n + 2 * p for n, o, k, s, p in axes)
