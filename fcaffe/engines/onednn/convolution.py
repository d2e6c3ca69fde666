"""Convolution and its gradients by oneDNN's primitives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from ctypes import c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.convolution import Folded, PlainConvolution
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import type_of
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.pieces import VECTOR, is_channels_last
from fcaffe.engines.onednn.primitives import Description, Layout, dims
from fcaffe.engines.windows import Windows

DIRECT = 1  # dnnl_convolution_direct

Array = Any


class Convolution(Operations, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, places...)."""

    _adding: dict[Hashable, bool]

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        if not x.size or not windows.kernel:
            super().convolution_forward(x, weights, bias, y, windows, group, relu)
            return

        operation = self._forward(x, weights, bias is not None, y, windows, group, relu)
        ins = (address(x), address(weights)) if bias is None else (address(x), address(weights), address(bias))
        operation(ins, (address(y),))

    def folded_convolution(
        self, x: Array, folded: Folded, y: Array, windows: Windows, group: int, relu: bool, plus: Array | None
    ) -> bool:
        """What is kept are weights in the primitive's own order."""
        if not x.size or not windows.kernel:
            return super().folded_convolution(x, folded, y, windows, group, relu, plus)
        if plus is not None and not (is_channels_last(plus) and is_channels_last(y)):
            with self.channels_last([plus], [y]) as (plus_, y_):
                return self.folded_convolution(x, folded, y_, windows, group, relu, plus_)
        weights = (sources := folded.sources())[0]
        within = plus is None or self._adds(x, weights, y, windows, group, relu, plus)
        added = plus if within else None
        operation = self._forward(x, weights, True, y, windows, group, relu and within, added)

        def make() -> tuple[Array, Array]:
            weights, bias = folded.make()
            return operation.ready(1, np.ascontiguousarray(weights)), bias

        made = self.of_weights(sources, (folded, operation), make)
        if made is None:
            return False
        outs = (address(y),) if added is None else (address(y), address(added))
        operation((address(x), address(made[0]), address(made[1])), outs, ready=1)
        if not within:
            self.add_to(plus, y, relu)
        return True

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
        def build() -> Operation:
            library = self.library
            inputs = {dnnl.SRC: library.layout(x), dnnl.WEIGHTS: library.layout(grouped(weights, group))}
            if biased:
                inputs[dnnl.BIAS] = self._bias(weights)
            outputs, chained = {dnnl.DST: library.layout(y)}, None if plus is None else {0: library.layout(plus)}
            description = self._describe_forward(x, weights, biased, y, windows, group, relu, plus)
            return Operation(
                library, description, inputs, outputs, chained=chained, through=self._rounded(weights, group)
            )

        shapes = x.shape, x.strides, weights.shape, y.shape, y.strides
        key = ("convolution", *shapes, biased, plus is None, windows, group, relu)
        return self.operation(key, build, (x, weights, y), y.size * weights[0].size)

    def _adds(self, x: Array, weights: Array, y: Array, windows: Windows, group: int, relu: bool, plus: Array) -> bool:
        """Whether the convolution can add an array as it stores its outputs, by more than the reference code."""
        key = "adds", x.shape, weights.shape, y.shape, y.strides, plus.strides, windows, group
        found = self._adding.get(key)
        if found is None:
            found = self._adding[key] = (
                plus.strides == y.strides
                and "ref" not in self._describe_forward(x, weights, True, y, windows, group, relu, plus).name
            )
        return found

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
        added = [] if plus is None else [(dnnl.ADD, library.layout(plus))]
        attributes = library.chain(added, relu) if added else library.attributes(relu=relu)

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

        return _for_channels(describe, y.shape[1])

    def _rounded(self, weights: Array, group: int) -> dict[int, Layout]:
        """Weights go to blocks of bfloat16 through rounded ones whose inputs come last: oneDNN takes twice as long for
        both in one."""
        if self.math == dnnl.F32 or type_of(weights) != dnnl.F32:
            return {}
        inputs = 1 if group == 1 else 2
        return {dnnl.WEIGHTS: self.library.with_last(grouped(weights, group), inputs, self.math)}

    def _bias(self, weights: Array) -> Layout:
        return Layout(self.library, weights.shape[:1], dnnl.F32, (1,))

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
            hint = self._describe_forward(dx, weights, False, dy, windows, group, False)

            def describe() -> Description:
                return library.describe(
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

            description = _for_channels(describe, dx.shape[1])
            inputs = {dnnl.DIFF_DST: library.layout(dy), dnnl.WEIGHTS: library.layout(grouped(weights, group))}
            through = None if windows.is_pointwise() else self._rounded(weights, group)
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)}, through=through)

        key = ("convolution data", dx.shape, dx.strides, weights.shape, dy.shape, dy.strides, windows, group)
        whole = set(windows.stride) == {1}  # with others the order of sums is the threads' as well
        operation = self.operation(key, build, (dx, weights, dy) if whole else (), dy.size * weights[0].size)
        operation((address(dy), address(weights)), (address(dx),))

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
            hint = self._describe_forward(x, dweights, False, dy, windows, group, False)
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


def _for_channels(describe: Callable[[], Description], channels: int) -> Description:
    """What describes a convolution with the faster of two implementations. Where so many channels of its result leave a
    part of a vector over, the library's direct code is a tenth faster than its products of blocks, which it prefers."""
    description = describe()
    if channels > VECTOR and channels % VECTOR and "brgconv:" in description.name:
        other = describe()
        while other.take_next():
            if other.name.startswith("jit") and "avx512" in other.name:
                return other
    return description


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
