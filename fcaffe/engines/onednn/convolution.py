"""Convolution by oneDNN's primitives."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.inner_product import ENOUGH
from fcaffe.engines.onednn.library import type_of
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.pieces import VECTOR
from fcaffe.engines.onednn.primitives import Description, Layout, dims
from fcaffe.engines.windows import Windows

DIRECT = 1  # dnnl_convolution_direct
MOST_POSITIONS = 4096  # of outputs that are computed as a product; of all images together

Array = Any


class Convolution(Operations, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...)."""

    if TYPE_CHECKING:

        def product(self, a: Array, b: Array, bias: Array, c: Array, add: bool = False, relu: bool = False) -> None: ...

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        if not x.size or not windows.kernel:
            super().convolution_forward(x, weights, bias, y, windows, group, relu)
            return

        if windows.is_pointwise() and self._is_product(weights, y, windows, group):
            with self.channels_last([x], [y]) as (x_, y_):
                numbers = None if bias is None else bias[None]
                self.product(rows_of(x_), matrix_of(weights).T, numbers, rows_of(y_), relu=relu)
        else:
            operation = self._forward(x, weights, bias is not None, y, windows, group, relu)
            ins = (address(x), address(weights)) if bias is None else (address(x), address(weights), address(bias))
            operation(ins, (address(y),))

    def _is_product(self, weights: Array, y: Array, windows: Windows, group: int) -> bool:
        """Whether outputs, or the gradient of the weights, are faster as a product of bfloat16 matrices.

        They are if each weight is used at few positions. In ResNet-50 with 16 images, at 784 positions outputs take a
        tenth less time and gradients of weights a fifth, or a third with a stride. At 3,136 both take a twentieth less,
        at 50,176 some take more. The gradient of the bottom gains nothing. float32 outputs stay convolutions, so that
        they have the same bits as those of fused layers.
        """
        below_threshold = y.size // y.shape[1] <= MOST_POSITIONS
        worth = self.math == dnnl.BF16 and below_threshold and min(weights.shape[:2]) >= ENOUGH
        return worth and group == 1 and windows.size == 1 and set(windows.pad) == {0}

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
            return Operation(
                library, description, inputs, outputs, chained=chained, through=self._rounded(weights, group)
            )

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

        return for_channels(describe, y.shape[1])

    def _rounded(self, weights: Array, group: int) -> dict[int, Layout]:
        """Weights are first rounded to bfloat16 with their inputs last, then reordered into blocks. One reorder that
        does both takes twice as long."""
        if self.math == dnnl.F32 or type_of(weights) != dnnl.F32:
            return {}
        inputs = 1 if group == 1 else 2
        return {dnnl.WEIGHTS: self.library.with_last(grouped(weights, group), inputs, self.math)}

    def _bias(self, weights: Array) -> Layout:
        return Layout(self.library, weights.shape[:1], dnnl.F32, (1,))


def for_channels(describe: Callable[[], Description], channels: int) -> Description:
    """The description of a convolution with the faster of two implementations. If the channels of its result do not
    fill whole vectors, the library's direct code is a tenth faster than its default, products of blocks."""
    description = describe()
    if channels > VECTOR and channels % VECTOR and "brgconv:" in description.name:
        other = describe()
        while other.take_next():
            if other.name.startswith("jit") and "avx512" in other.name:
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
