"""Convolution and its gradients by oneDNN's primitives."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.primitives import Description, Layout, dims
from fcaffe.engines.windows import Windows

DIRECT = 1  # dnnl_convolution_direct

Array = Any


class Convolution(Operations, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, places...)."""

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        if not x.size or not windows.kernel:
            super().convolution_forward(x, weights, bias, y, windows, group, relu)
            return

        def build() -> Operation:
            library = self.library
            inputs = {dnnl.SRC: library.layout(x), dnnl.WEIGHTS: library.layout(grouped(weights, group))}
            if bias is not None:
                inputs[dnnl.BIAS] = library.layout(bias)
            outputs = {dnnl.DST: library.layout(y)}
            description = self._describe_forward(x, weights, bias, y, windows, group, relu)
            return Operation(library, description, inputs, outputs)

        key = ("convolution", x.shape, x.strides, weights.shape, y.shape, y.strides, bias is None, windows, group, relu)
        ins = (address(x), address(weights)) if bias is None else (address(x), address(weights), address(bias))
        self.operation(key, build)(ins, (address(y),))

    def _describe_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool
    ) -> Description:
        library = self.library
        return library.describe(
            "convolution_forward",
            library.engine,
            c_int(dnnl.FORWARD_TRAINING),
            c_int(DIRECT),
            library.channels_last(x, self.math),
            Layout(library, grouped(weights, group).shape, self.math),
            c_void_p() if bias is None else library.layout(bias),
            library.channels_last(y),
            *geometry(windows, x.shape[2:], y.shape[2:]),
            library.attributes(relu=relu),
        )

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        if not dx.size or not windows.kernel:
            super().convolution_backward_data(dy, weights, dx, windows, group)
            return
        if self._is_product(windows, group):
            with self.channels_last([dy], [dx]) as (dy_, dx_):
                self.library.sgemm(_rows(dy_), _matrix(weights), _rows(dx_))
            return

        def build() -> Operation:
            library = self.library
            hint = self._describe_forward(dx, weights, None, dy, windows, group, False)
            description = library.describe(
                "convolution_backward_data",
                library.engine,
                c_int(DIRECT),
                library.channels_last(dx),
                Layout(library, grouped(weights, group).shape, self.math),
                library.channels_last(dy, self.math),
                *geometry(windows, dx.shape[2:], dy.shape[2:]),
                hint,
                library.attributes(),
            )
            inputs = {dnnl.DIFF_DST: library.layout(dy), dnnl.WEIGHTS: library.layout(grouped(weights, group))}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)})

        key = ("convolution data", dx.shape, dx.strides, weights.shape, dy.shape, dy.strides, windows, group)
        self.operation(key, build)((address(dy), address(weights)), (address(dx),))

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, dbias: Array, windows: Windows, group: int, add: bool
    ) -> None:
        if not x.size or not windows.kernel:
            super().convolution_backward_weights(x, dy, dweights, dbias, windows, group, add)
            return
        if dbias is not None:  # oneDNN's own sums lose digits with every value
            self.convolution_backward_bias(dy, dbias, add)
        if self._is_product(windows, group):
            with self.channels_last([dy, x], []) as (dy_, x_):
                self.library.sgemm(_rows(dy_).T, _rows(x_), _matrix(dweights), add)
            return

        def build() -> Operation:
            library = self.library
            hint = self._describe_forward(x, dweights, None, dy, windows, group, False)
            description = library.describe(
                "convolution_backward_weights",
                library.engine,
                c_int(DIRECT),
                library.channels_last(x, self.math),
                Layout(library, grouped(dweights, group).shape),
                c_void_p(),
                library.channels_last(dy, self.math),
                *geometry(windows, x.shape[2:], dy.shape[2:]),
                hint,
                library.attributes(),
            )
            inputs = {dnnl.SRC: library.layout(x), dnnl.DIFF_DST: library.layout(dy)}
            outputs = {dnnl.DIFF_WEIGHTS: library.layout(grouped(dweights, group))}
            return Operation(library, description, inputs, outputs)

        key = ("convolution weights", x.shape, x.strides, dweights.shape, dy.shape, dy.strides, windows, group)
        self.operation(key, build)((address(x), address(dy)), (address(dweights),), add)

    def _is_product(self, windows: Windows, group: int) -> bool:
        """Whether the gradients are plain products of matrices, which are a tenth faster as such."""
        return self.math == dnnl.F32 and group == 1 and windows.is_pointwise()


def _rows(x: Array) -> Array:
    """(N * places, C), in the memory of a channels-last array."""
    return channels_last(x).reshape(-1, x.shape[1])


def _matrix(weights: Array) -> Array:
    """(M, C), of a kernel of one value."""
    return weights.reshape(weights.shape[:2])


def geometry(windows: Windows, size: tuple[int, ...], places: tuple[int, ...]) -> list[Any]:
    """Strides, dilations, padding before, and as much behind as the last window needs."""
    w = windows
    behind = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for n, o, k, s, p, d in zip(size, places, w.kernel, w.stride, w.pad, w.dilation, strict=True)
    ]
    return [dims(w.stride), dims([d - 1 for d in w.dilation]), dims(w.pad), dims(behind)]


def grouped(weights: np.ndarray, group: int) -> np.ndarray:
    """(group, M / group, C / group, kernel...) if there is more than one."""
    return weights if group == 1 else weights.reshape(group, -1, *weights.shape[1:])
