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
        if not _is_supported(x.shape, y.shape, windows):
            super().max_pool_forward(x, y, memory, windows)
            return
        outs = (address(y),) if memory is None else (address(y), address(memory))
        self._pooling(MAX, x, y, windows, memory is not None)((address(x),), outs)

    def max_pool_backward(self, dy: Array, memory: Array, dx: Array, windows: Windows) -> None:
        if not _is_supported(dx.shape, dy.shape, windows):
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
        if not _is_supported(x.shape, y.shape, windows):
            with self.dense([x], [y]) as (x_, y_):
                super().average_pool_forward(x_, y_, windows)
            return
        correction = _correction(x.shape[2:], y.shape[2:], windows)
        if correction is None:
            self._pooling(AVERAGE, x, y, windows)((address(x),), (address(y),))
            return
        with self.in_float32([x], [y]) as (x_, y_):
            self._pooling(AVERAGE, x_, y_, windows)((address(x_),), (address(y_),))
            np.multiply(y_, correction, out=y_)

    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
        if not _is_supported(dx.shape, dy.shape, windows):
            with self.dense([dy], [dx]) as (dy_, dx_):
                super().average_pool_backward(dy_, dx_, windows)
            return
        correction = _correction(dx.shape[2:], dy.shape[2:], windows)
        if correction is None:
            self._pooling_backward(AVERAGE, dy, dx, windows)((address(dy),), (address(dx),))
            return
        with self.in_float32([dy], [dx]) as (dy_, dx_):
            dy_ = np.multiply(dy_, correction)
            self._pooling_backward(AVERAGE, dy_, dx_, windows)((address(dy_),), (address(dx_),))

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
    strides, *others = geometry(windows, x, y)
    return [strides, dims(windows.kernel), *others]


@functools.lru_cache(1024)
def _is_supported(shape: tuple[int, ...], output_shape: tuple[int, ...], windows: Windows) -> bool:
    """Whether there are values, and each window has one of them."""
    axes = zip(shape[2:], output_shape[2:], windows.stride, windows.pad, strict=True)
    return 0 not in shape and all((o - 1) * s - p < n for n, o, s, p in axes)


@functools.lru_cache(1024)
def _correction(size: tuple[int, ...], output_size: tuple[int, ...], windows: Windows) -> Array | None:
    """(H', W'): a factor, if windows go beyond the padding. oneDNN divides by the size of the whole window there."""
    axes = zip(size, output_size, windows.kernel, windows.stride, windows.pad, strict=True)
    if all((o - 1) * s + k <= n + 2 * p for n, o, k, s, p in axes):
        return None
    return np.float32(windows.size) / windows.areas(np, size, output_size)
