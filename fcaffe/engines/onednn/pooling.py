"""Maximum and average pooling by oneDNN's primitives."""

from __future__ import annotations

import functools
from ctypes import c_int
from typing import Any

import numpy as np

from fcaffe.engines.limits import or_plain
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

    @or_plain
    def max_pool_forward(self, x: Array, y: Array, memory: Array | None, windows: Windows) -> None:
        outs = (address(y),) if memory is None else (address(y), address(memory))
        self._pooling(MAX, x, y, windows, memory is not None)((address(x),), outs)

    @or_plain
    def max_pool_backward(self, dy: Array, memory: Array, dx: Array, windows: Windows) -> None:
        self._pooling_backward(MAX, dy, dx, windows)((address(dy),), (address(dx), address(memory)))

    @or_plain
    def average_pool_forward(self, x: Array, y: Array, windows: Windows) -> None:
        correction = _correction(x.shape[2:], y.shape[2:], windows)
        if correction is None:
            self._pooling(AVERAGE, x, y, windows)((address(x),), (address(y),))
            return
        with self.in_float32([x], [y]) as (x_, y_):
            self._pooling(AVERAGE, x_, y_, windows)((address(x_),), (address(y_),))
            np.multiply(y_, correction, out=y_)

    @or_plain
    def average_pool_backward(self, dy: Array, dx: Array, windows: Windows) -> None:
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

        return self.operation("pooling", (x, y), (windows, self.library.has(dnnl.AVX), kind, saves), build)

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

        settings = windows, self.library.has(dnnl.AVX), kind, "backward"
        return self.operation("pooling", (dx, dy), settings, build, same_bits=not windows.overlap())

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
def _correction(size: tuple[int, ...], output_size: tuple[int, ...], windows: Windows) -> Array | None:
    """(H', W'): a factor, if windows go beyond the padding. oneDNN divides by the size of the whole window there."""
    axes = zip(size, output_size, windows.kernel, windows.stride, windows.pad, strict=True)
    if all((o - 1) * s + k <= n + 2 * p for n, o, k, s, p in axes):
        return None
    return np.float32(windows.size) / windows.areas(np, size, output_size)
