"""Operators on single values by oneDNN's primitives: ReLU, sums, products, copies."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import LARGEST, RELU, Step, type_of
from fcaffe.engines.onednn.operation import SMALL, Operation, Operations

# Of x + x: ReLU, but of -FLT_MAX, which has become -inf and then NaN, it is -FLT_MAX.
RELU_OF_MAXIMA: Sequence[Step] = (*RELU[:1], (dnnl.LINEAR, 0.5, 0), (dnnl.CLIP, -LARGEST, np.inf))

Array = Any


class Elementwise(Operations, PlainElementwise):
    """Arrays of equal strides are used in place; others are reordered to channels-last first."""

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        if x.size < SMALL or slope < 0:
            super().relu_forward(x, y, slope)
        else:
            self._map(x, y, ((dnnl.RELU, slope, 0),) if slope else RELU)

    def relu_of_maxima(self, y: Array) -> None:
        if y.size < SMALL:
            super().relu_of_maxima(y)
        else:
            self._map(y, y, RELU_OF_MAXIMA, dnnl.ADD)

    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        if y.size < SMALL or not 0 <= slope <= 1:
            super().relu_backward(y, dy, dx, slope)
            return
        steps = (dnnl.LINEAR, LARGEST, 0), (dnnl.CLIP, slope, 1)  # 1 for positive values, the slope for others and NaN
        if y.strides == dy.strides == dx.strides:
            self._map(y, dx, steps, factor=dy)
        else:
            with self.channels_last([y, dy], [dx]) as (y_, dy_, dx_):
                self._map(y_, dx_, steps, factor=dy_)

    def _map(
        self, x: Array, y: Array, steps: Sequence[Step], kind: int = dnnl.MAX, factor: Array | None = None
    ) -> None:
        """y = f(x), or f(x) * factor, in one pass over memory. f applies the operation `kind` to x and x, and then the
        steps. The factor lies as x and y do."""

        def build() -> Operation:
            library, layout = self.library, self.library.common(x, y)
            chain = steps if factor is None else (*steps, (dnnl.MULTIPLY, layout))
            description = library.describe(
                "binary", library.engine, c_int(kind), layout, layout, layout, library.chain(chain)
            )
            inputs = {dnnl.SRC: library.layout(x), dnnl.SRC_1: library.layout(x)}
            chained = {} if factor is None else {len(steps): layout}
            return Operation(library, description, inputs, {dnnl.DST: library.layout(y)}, chained=chained)

        rest = () if factor is None else (factor,)
        operation = self.operation(("map", steps, kind, x.shape, x.strides, y.strides, len(rest)), build, (x, y, *rest))
        operation((address(x), address(x)), (address(y), *map(address, rest)))

    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        if y.size < SMALL:
            super().weighted_sum(arrays, factors, y)
            return

        def build() -> Operation:
            library = self.library
            layout = library.common(*arrays, y)
            description = library.describe(
                "sum",
                library.engine,
                layout,
                c_int(len(arrays)),
                (c_float * len(factors))(*factors),
                (c_void_p * len(arrays))(*[layout.handle.value] * len(arrays)),
                library.attributes(),
            )
            inputs = {dnnl.MULTIPLE_SRC + index: library.layout(array) for index, array in enumerate(arrays)}
            return Operation(library, description, inputs, {dnnl.DST: library.layout(y)})

        key = ("sum", y.shape, y.strides, *(array.strides for array in arrays), *factors)
        operation = self.operation(key, build, (*arrays, y))
        operation(tuple(address(array) for array in arrays), (address(y),))

    def add_relu(self, a: Array, b: Array, y: Array) -> None:
        if y.size < SMALL:
            super().add_relu(a, b, y)
        else:
            self._binary(dnnl.ADD, a, b, y, relu=True)

    def multiply(self, a: Array, b: Array, y: Array) -> None:
        if y.size < SMALL:
            super().multiply(a, b, y)
        else:
            self._binary(dnnl.MULTIPLY, a, b, y)

    def _binary(self, kind: int, a: Array, b: Array, y: Array, relu: bool = False) -> None:
        def build() -> Operation:
            library = self.library
            layouts = [library.common(a, b, y, data_type=type_of(array)) for array in (a, b, y)]
            attributes = library.attributes(relu=relu)
            description = library.describe("binary", library.engine, c_int(kind), *layouts, attributes)
            inputs = {dnnl.SRC: library.layout(a), dnnl.SRC_1: library.layout(b)}
            return Operation(library, description, inputs, {dnnl.DST: library.layout(y)})

        key = ("binary", kind, relu, a.shape, a.strides, b.strides, y.strides)
        self.operation(key, build, (a, b, y))((address(a), address(b)), (address(y),))

    def copy(self, x: Array, y: Array) -> None:
        is_small = y.size < SMALL and x.dtype == y.dtype and self.library.tape is None
        if is_small or not (_has_layout(x) and _has_layout(y)):
            super().copy(x, y)
            return

        def build() -> Operation:
            library = self.library
            layouts = [library.layout(array) for array in (x, y)]
            description = library.describe(
                "reorder", layouts[0], library.engine, layouts[1], library.engine, library.attributes()
            )
            return Operation(library, description, {dnnl.SRC: layouts[0]}, {dnnl.DST: layouts[1]})

        self.operation(("copy", x.shape, x.strides, y.strides), build, (x, y))((address(x),), (address(y),))


def _has_layout(x: Array) -> bool:
    """Whether oneDNN can describe the array: no axis overlaps the next outer one in memory."""
    reached = 0
    for stride, count in sorted(zip(x.strides, x.shape, strict=True)):
        if count > 1 and stride < reached:
            return False
        reached = max(reached, stride * count)
    return True
