"""Operators on single values by oneDNN's primitives: ReLU, sums, products, copies."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.channels import sum_channels
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import LARGEST, RELU, Step, type_of
from fcaffe.engines.onednn.operation import SMALL, Operation, Operations
from fcaffe.engines.onednn.primitives import Description, Layout

# 1 for positive values, 0 for others and NaN: clip(FLT_MAX * x, 0, 1).
IS_POSITIVE: Sequence[Step] = ((dnnl.LINEAR, LARGEST, 0), (dnnl.CLIP, 0, 1))

# Of x + x: ReLU, but of -FLT_MAX, which has become -inf and then NaN, it is -FLT_MAX.
RELU_OF_MAXIMA: Sequence[Step] = (*RELU[:1], (dnnl.LINEAR, 0.5, 0), (dnnl.CLIP, -LARGEST, np.inf))

Array = Any


class Elementwise(Operations, PlainElementwise):
    """Arrays of equal strides are used in place; others are reordered to channels-last first."""

    def channel_sums(self, x: Array) -> Array:
        return sum_channels(x, self._add_rows)

    def _add_rows(self, rows: Array) -> Array:
        sums = np.empty((1, rows.shape[1]), np.float32)
        self.library.sgemm(np.ones((1, rows.shape[0]), np.float32), rows, sums)
        return sums[0]

    def add_bias(self, y: Array, bias: Array) -> None:
        if y.ndim != 2 or len(y) != 1 or (y.size < SMALL and self.library.tape is None):
            super().add_bias(y, bias)
        else:
            self._binary(dnnl.ADD, y, bias[None], y)

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        if x.size < SMALL or slope < 0:
            super().relu_forward(x, y, slope)
        elif slope:
            self._leaky_relu(x, y, slope)
        else:
            self._map(x, y, RELU)

    def relu_of_maxima(self, y: Array) -> None:
        if y.size < SMALL:
            super().relu_of_maxima(y)
        else:
            self._map(y, y, RELU_OF_MAXIMA, dnnl.ADD)

    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        if y.size < SMALL or slope < 0:
            super().relu_backward(y, dy, dx, slope)
        elif slope:
            self._leaky_relu_backward(y, dy, dx, slope)
        elif y.strides == dy.strides == dx.strides:
            self._map(y, dx, IS_POSITIVE, factor=dy)
        else:
            with self.channels_last([y, dy], [dx]) as (y_, dy_, dx_):
                self._map(y_, dx_, IS_POSITIVE, factor=dy_)

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

    def _leaky_relu(self, x: Array, y: Array, slope: float) -> None:
        def build() -> Operation:
            description = self._describe_relu(self.library.common(x, y), slope)
            return Operation(
                self.library, description, {dnnl.SRC: self.library.layout(x)}, {dnnl.DST: self.library.layout(y)}
            )

        self.operation(("relu", x.shape, x.strides, y.strides, slope), build, (x, y))((address(x),), (address(y),))

    def _leaky_relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        def build() -> Operation:
            library, layout = self.library, self.library.common(y, dy, dx)
            description = library.describe(
                "eltwise_backward",
                library.engine,
                c_int(dnnl.RELU_BY_OUTPUT),
                layout,
                layout,
                layout,
                c_float(slope),
                c_float(0),
                self._describe_relu(layout, slope),
                library.attributes(),
            )
            inputs = {dnnl.DST: library.layout(y), dnnl.DIFF_DST: library.layout(dy)}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)})

        key = ("relu backward", y.shape, y.strides, dy.strides, dx.strides, slope)
        self.operation(key, build, (y, dy, dx))((address(y), address(dy)), (address(dx),))

    def _describe_relu(self, layout: Layout, slope: float) -> Description:
        library = self.library
        kinds = c_int(dnnl.FORWARD_TRAINING), c_int(dnnl.RELU_BY_OUTPUT)
        numbers = c_float(slope), c_float(0)
        return library.describe(
            "eltwise_forward", library.engine, *kinds, layout, layout, *numbers, library.attributes()
        )

    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        if y.size < SMALL:
            super().weighted_sum(arrays, factors, y)
            return
        if list(factors) == [1.0, 1.0]:  # a fourth faster, with the same bits
            self._binary(dnnl.ADD, arrays[0], arrays[1], y)
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

    def concat(self, parts: Sequence[Array], whole: Array, axis: int) -> None:
        """For channels in one call, which writes memory in order; copies of one part at a time do not."""
        if axis != 1 or whole.ndim < 3 or whole.size < SMALL or not all(part.size for part in parts):
            super().concat(parts, whole, axis)
            return

        def build() -> Operation:
            library = self.library
            wanted = [library.channels_last(part) for part in parts]
            description = library.describe(
                "concat",
                library.engine,
                library.channels_last(whole),
                c_int(len(parts)),
                c_int(axis),
                (c_void_p * len(parts))(*[layout.handle.value for layout in wanted]),
                library.attributes(),
            )
            inputs = {dnnl.MULTIPLE_SRC + index: library.layout(part) for index, part in enumerate(parts)}
            return Operation(library, description, inputs, {dnnl.DST: library.layout(whole)})

        key = ("concat", whole.strides, *((part.shape, part.strides) for part in parts))
        operation = self.operation(key, build, (whole, *parts))
        operation(tuple([address(part) for part in parts]), (address(whole),))


def _has_layout(x: Array) -> bool:
    """Whether oneDNN can describe the array: no axis overlaps the next outer one in memory."""
    reached = 0
    for stride, count in sorted(zip(x.strides, x.shape, strict=True)):
        if count > 1 and stride < reached:
            return False
        reached = max(reached, stride * count)
    return True
