"""Convolution by oneDNN's primitives."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.primitives import Description, Layout, dims
from fcaffe.engines.windows import Windows

DIRECT = 1  # dnnl_convolution_direct


class Convolution(Operations, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...)."""

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        if not is_supported(x, windows):
            super().convolution_forward(x, weights, bias, y, windows, group, relu)
            return

        operation = self._forward(x, weights, bias is not None, y, windows, group, relu)
        ins = (address(x), address(weights)) if bias is None else (address(x), address(weights), address(bias))
        operation(ins, (address(y),))

    def _forward(
        self,
        x: Array,
        weights: Array,
        biased: bool,
        y: Array,
        windows: Windows,
        group: int,
        relu: bool,
        plus: Array | None = None,
    ) -> Operation:
        """The operation that also adds `plus` and applies ReLU to the outputs as it stores them."""

        def build() -> Operation:
            library = self.library
            inputs = {dnnl.SRC: library.layout(x), dnnl.WEIGHTS: library.layout(grouped(weights, group))}
            if biased:
                inputs[dnnl.BIAS] = self._bias(weights)
            outputs = {dnnl.DST: library.layout(y)}
            chained = {} if plus is None else {0: library.layout(plus)}
            description = self._describe_forward(x, weights, biased, y, windows, group, relu, plus)
            return Operation(library, description, inputs, outputs, chained=chained)

        shapes = x.shape, x.strides, weights.shape, y.shape, y.strides
        key = ("convolution", *shapes, biased, plus is None, windows, group, relu)
        return self.operation(key, build, (x, weights, y), y.size * weights[0].size)

    def _describe_forward(
        self,
        x: Array,
        weights: Array,
        biased: bool,
        y: Array,
        windows: Windows,
        group: int,
        relu: bool,
        plus: Array | None = None,
    ) -> Description:
        library = self.library
        if plus is None:
            attributes = library.attributes(relu=relu)
        else:
            attributes = library.chain([(dnnl.ADD, library.layout(plus))], relu)

        def describe() -> Description:
            return library.describe(
                "convolution_forward",
                library.engine,
                c_int(dnnl.FORWARD_TRAINING),
                c_int(DIRECT),
                library.channels_last(x, self.math),
                Layout(library, grouped(weights, group).shape, self.math),
                self._bias(weights) if biased else c_void_p(),
                library.channels_last(y),
                *geometry(windows, x.shape[2:], y.shape[2:]),
                attributes,
            )

        # Without AVX-512 the library's first choice for 1x1 kernels takes a tenth longer.
        return preferred(describe, "jit_1x1:avx2", "brgconv_1x1:avx2")

    def _bias(self, weights: Array) -> Layout:
        return Layout(self.library, weights.shape[:1], dnnl.F32, (1,))


def is_supported(x: Array, windows: Windows) -> bool:
    """Whether oneDNN convolves arrays of this shape: of one to three spatial axes, with values."""
    return x.size > 0 and 1 <= len(windows.kernel) <= 3


def preferred(describe: Callable[[], Description], better: str, first: str) -> Description:
    """The implementation whose name has `better` in it, where the library has one and its first choice has `first`."""
    description = describe()
    if first in description.name:
        other = describe()
        while other.take_next():
            if better in other.name:
                return other
    return description


def rows_of(x: Array) -> Array:
    """(N * positions, C), a view of a channels-last array."""
    return channels_last(x).reshape(-1, x.shape[1])


def matrix_of(weights: Array) -> Array:
    """(M, C), of a kernel of one value."""
    return weights.reshape(weights.shape[:2])


def geometry(windows: Windows, size: tuple[int, ...], output_size: tuple[int, ...]) -> list[Any]:
    """Strides, dilations, the padding before, and the padding behind that the last window needs."""
    w = windows
    behind = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for n, o, k, s, p, d in zip(size, output_size, w.kernel, w.stride, w.pad, w.dilation, strict=True)
    ]
    return [dims(w.stride), dims([d - 1 for d in w.dilation]), dims(w.pad), dims(behind)]


def grouped(weights: np.ndarray, group: int) -> np.ndarray:
    """(group, M / group, C / group, kernel...) if there is more than one."""
    return weights if group == 1 else weights.reshape(group, -1, *weights.shape[1:])
