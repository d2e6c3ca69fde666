"""Convolution and its gradients by oneDNN's primitives. 1x1 kernels may take products of matrices instead."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from ctypes import c_int, c_void_p
from typing import Any, NamedTuple

import numpy as np

from fcaffe.engines.channels import channels_last, is_channels_last
from fcaffe.engines.convolution import Fold, PlainConvolution
from fcaffe.engines.limits import or_plain
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import VECTOR, Library
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.primitives import Description, Layout, dims
from fcaffe.engines.windows import Windows

DIRECT = 1  # dnnl_convolution_direct
MANY_CHANNELS = 256


class Sizes(NamedTuple):
    """Shapes, strides and types for which a primitive is compiled: of x, weights and y, or of their gradients."""

    x: Array
    weights: Array
    y: Array
    windows: Windows
    group: int

    @property
    def multiply_adds(self) -> int:
        return self.y.size * self.weights[0].size

    @property
    def grouped(self) -> Array:
        """The weights as (group, M / group, C / group, kernel...) if there is more than one group."""
        return self.weights if self.group == 1 else self.weights.reshape(self.group, -1, *self.weights.shape[1:])

    @property
    def is_product(self) -> bool:
        """Whether the convolution is a product of matrices: one group of 1x1 kernels, stride 1 and no padding."""
        return self.x.size > 0 and self.group == 1 and self.windows.is_pointwise()


class Convolution(Operations, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...)."""

    @or_plain
    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        sizes = Sizes(x, weights, y, windows, group)
        operation = self._forward(sizes, bias is not None, relu)
        self.run(operation, (x, weights) if bias is None else (x, weights, bias), y, weights=weights)

    @or_plain
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
        """One primitive, and the folded weights are cached in its own layout."""
        sizes = Sizes(x, weights, y, windows, group)
        if plus is not None and not (is_channels_last(plus) and is_channels_last(y)):
            with self.dense([plus], [y]) as (plus_, y_):
                return self.folded_convolution(x, weights, fold, y_, windows, group, relu, plus_)
        added = plus if plus is not None and plus.strides == y.strides else None
        operation = self._forward(sizes, True, relu and plus is added, added)

        def derive() -> tuple[Array, Array]:
            folded, bias = fold()
            return operation.ready(1, np.ascontiguousarray(folded)), bias

        found = self.of_weights(operation, derive)
        if found is None:
            return False
        outs = (address(y), address(plus)) if operation.chained else (address(y),)
        operation((address(x), *map(address, found)), outs, ready=1)
        if plus is not None and not operation.chained:
            self.add_to(plus, y, relu)
        return True

    @or_plain
    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        sizes = Sizes(dx, weights, dy, windows, group)
        if self.math == dnnl.F32 and sizes.is_product:  # a tenth faster, and so is the weights' gradient
            with self.dense([dy], [dx]) as (dy_, dx_):
                self.library.sgemm(_rows_of(dy_), _matrix_of(weights), _rows_of(dx_))
            return
        library = self.library

        def build() -> Operation:
            # The library's direct code is a sixth faster than its products if channels do not fill whole vectors.
            partial = dx.shape[1] > VECTOR and dx.shape[1] % VECTOR
            better = ("jit:avx512", "brgconv:") if partial else None
            factors = Layout(library, sizes.grouped.shape, self.math), library.channels_last(dy, self.math)
            description = self._describe_gradient("data", sizes, (library.channels_last(dx), *factors), better)
            inputs = {dnnl.DIFF_DST: library.layout(dy), dnnl.WEIGHTS: library.layout(sizes.grouped)}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)})

        same_bits = set(windows.stride) == {1}  # with others the order of sums is the threads' as well
        operation = self._operation(sizes, ("data",), build, same_bits)
        self.run(operation, (dy, weights), dx, weights=weights)

    @or_plain
    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        sizes = Sizes(x, dweights, dy, windows, group)
        if self.math == dnnl.BF16 and sizes.is_product and min(dweights.shape[:2]) >= MANY_CHANNELS:  # faster
            with self.dense([dy, x], []) as (dy_, x_):
                self.product(_rows_of(dy_).T, _rows_of(x_), None, _matrix_of(dweights), add)
            return
        if self.math == dnnl.F32 and sizes.is_product:
            with self.dense([dy, x], []) as (dy_, x_):
                self.library.sgemm(_rows_of(dy_).T, _rows_of(x_), _matrix_of(dweights), add)
            return
        library = self.library

        def build() -> Operation:
            sources = library.channels_last(x, self.math), Layout(library, sizes.grouped.shape), c_void_p()
            description = self._describe_gradient("weights", sizes, (*sources, library.channels_last(dy, self.math)))
            inputs = {dnnl.SRC: library.layout(x), dnnl.DIFF_DST: library.layout(dy)}
            return Operation(library, description, inputs, {dnnl.DIFF_WEIGHTS: library.layout(sizes.grouped)})

        operation = self._operation(sizes, ("weights",), build, same_bits=False)
        operation((address(x), address(dy)), (address(dweights),), add)

    def _forward(self, sizes: Sizes, biased: bool, relu: bool, plus: Array | None = None) -> Operation:
        """The operation that also adds `plus` and applies ReLU as it stores its outputs.

        It does neither if only the library's slow reference code can add `plus`.
        """
        x, weights, y, *_ = sizes

        def build() -> Operation:
            library = self.library
            inputs = {dnnl.SRC: library.layout(x), dnnl.WEIGHTS: library.layout(sizes.grouped)}
            if biased:
                inputs[dnnl.BIAS] = self._bias(weights)
            chained = {} if plus is None else {0: library.layout(plus)}
            description = self._describe_forward(sizes, biased, relu, plus)
            if chained and "ref" in description.name:
                chained, description = {}, self._describe_forward(sizes, biased, False)
            return Operation(library, description, inputs, {dnnl.DST: library.layout(y)}, chained=chained)

        return self._operation(sizes, (biased, plus is None, relu), build)

    def _operation(
        self, sizes: Sizes, settings: tuple[Hashable, ...], build: Callable[[], Operation], same_bits: bool = True
    ) -> Operation:
        x, weights, y, windows, group = sizes
        settings = windows, group, *settings
        return self.operation("convolution", (x, weights, y), settings, build, same_bits, sizes.multiply_adds)

    def _describe_forward(self, sizes: Sizes, biased: bool, relu: bool, plus: Array | None = None) -> Description:
        library = self.library
        return _described(
            # Without AVX-512 the library's first choice for 1x1 kernels takes a tenth longer.
            ("jit_1x1:avx2", "brgconv_1x1:avx2"),
            library,
            "convolution_forward",
            library.engine,
            c_int(dnnl.FORWARD_TRAINING),
            c_int(DIRECT),
            library.channels_last(sizes.x, self.math),
            Layout(library, sizes.grouped.shape, self.math),  # the primitive chooses the strides
            self._bias(sizes.weights) if biased else c_void_p(),
            library.channels_last(sizes.y),
            *geometry(sizes.windows, sizes.x, sizes.y),
            library.attributes([] if plus is None else [(dnnl.ADD, library.layout(plus))], relu),
        )

    def _describe_gradient(
        self, of: str, sizes: Sizes, arguments: tuple[Any, ...], better: tuple[str, str] | None = None
    ) -> Description:
        library = self.library
        hint = self._describe_forward(sizes, False, False)
        ends = *geometry(sizes.windows, sizes.x, sizes.y), hint, library.attributes()
        name = f"convolution_backward_{of}"
        return _described(better, library, name, library.engine, c_int(DIRECT), *arguments, *ends)

    def _bias(self, weights: Array) -> Layout:
        return Layout(self.library, weights.shape[:1], dnnl.F32, (1,))


def _described(better: tuple[str, str] | None, library: Library, *arguments: Any) -> Description:
    """Describe a primitive. `better` has substrings of two implementations' names: the first replaces the second.

    The library's own choice stays if it is another one than the second, or if the library does not have the first.
    """
    description = library.describe(*arguments)
    if better and better[1] in description.name:
        other = library.describe(*arguments)
        while other.take_next():
            if better[0] in other.name:
                return other
    return description


def _rows_of(x: Array) -> Array:
    """(N * positions, C), a view of a channels-last array."""
    return channels_last(x).reshape(-1, x.shape[1])


def _matrix_of(weights: Array) -> Array:
    """(M, C), of a kernel of one value."""
    return weights.reshape(weights.shape[:2])


def geometry(w: Windows, x: Array, y: Array) -> list[Any]:
    """Strides, dilations, the padding before, and the padding behind that the last window needs."""
    behind = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for n, o, k, s, p, d in zip(x.shape[2:], y.shape[2:], w.kernel, w.stride, w.pad, w.dilation, strict=True)
    ]
    return [dims(w.stride), dims([d - 1 for d in w.dilation]), dims(w.pad), dims(behind)]
