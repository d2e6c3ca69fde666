"""Operators on single values by oneDNN's primitives: ReLU, sums, products, copies."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float, c_int
from typing import Any

import numpy as np

from fcaffe.engines.channels import is_channels_last
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.formulas import Formula
from fcaffe.engines.limits import or_plain, require
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.formulas import Pass, Whole, passes_of, whole
from fcaffe.engines.onednn.operation import Operation, Operations, Step


class Elementwise(Operations, PlainElementwise):
    """Arrays of equal strides are used in place; others are copied to channels-last first."""

    _passes: dict[Formula, Whole | list[Pass] | None]

    @or_plain
    def pointwise(self, formula: Formula, arrays: Mapping[str, Array], out: Array) -> None:
        if formula not in self._passes:
            self._passes[formula] = whole(formula.tree) or passes_of(formula.tree)
        passes = self._passes[formula]
        self.leave_small(out)
        require(all(array.shape == out.shape for array in arrays.values()))
        with self._of_one_layout(list(arrays.values()), [out]) as inside:
            known = dict(zip((*arrays, "out"), inside, strict=True))
            if passes is None or not arrays:
                super().pointwise(formula, {name: known[name] for name in arrays}, known["out"])
                return
            if isinstance(passes, Whole):
                self._function(passes.algorithm, [known[name] for name in passes.inputs], known["out"], passes.alpha)
                return
            for start, steps, target in passes:
                if target not in known:
                    known[target] = np.empty_like(known[start])
                bound: list[Any] = [(step[0], known[step[1]]) if isinstance(step[1], str) else step for step in steps]
                if not bound or len(bound[0]) == 3:
                    bound.insert(0, (dnnl.MAX, known[start]))  # a chain begins with an array
                self.in_steps(known[start], known[target], bound)

    @or_plain
    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        """Caffe's max(x, 0) + slope * min(x, 0), so without a slope -inf gives NaN."""
        require(slope >= 0)
        self.leave_small(x)
        with self._of_one_layout([x], [y]) as (x_, y_):
            steps: list[Step] = [(dnnl.MAX, x_), (dnnl.RELU, slope, 0)]
            if not slope:  # the last step makes 0 of -0
                steps = [(dnnl.GREATER, _scalar(0, x.ndim)), (dnnl.MULTIPLY, x_), (dnnl.LINEAR, 1, 0)]
            self.in_steps(x_, y_, steps)

    @or_plain
    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        self.leave_small(y)
        require(0 <= slope <= 1)
        gain = [(dnnl.LINEAR, 1 - slope, slope)] if slope else []  # 1 for positive values, the slope for others and NaN
        with self._of_one_layout([y, dy], [dx]) as (y_, dy_, dx_):
            is_positive = (dnnl.MULTIPLY, _scalar(-1, y.ndim)), (dnnl.LESS, _scalar(0, y.ndim))
            self.in_steps(y_, dx_, [*is_positive, *gain, (dnnl.MULTIPLY, dy_)])

    def _function(self, algorithm: int, inputs: list[Array], out: Array, alpha: float) -> None:
        """A function of x; or the gradient of x, from x, or the result for an algorithm by it, and its gradient."""

        def build() -> Operation:
            library, layouts = self.library, [self.library.layout(array) for array in (*inputs, out)]
            attributes, training, x = library.attributes(), c_int(dnnl.FORWARD_TRAINING), layouts[0]
            of, numbers = c_int(algorithm), (c_float(alpha), c_float(0))
            forward = library.describe("eltwise_forward", library.engine, training, of, x, x, *numbers, attributes)
            if len(inputs) == 1:
                return Operation(library, forward, {dnnl.SRC: x}, {dnnl.DST: layouts[1]})
            known, dy, dx = layouts
            backward = library.describe(
                "eltwise_backward", library.engine, of, dx, dy, known, *numbers, forward, attributes
            )
            kind = dnnl.DST if algorithm >= dnnl.TANH_BY_DST else dnnl.SRC
            return Operation(library, backward, {kind: known, dnnl.DIFF_DST: dy}, {dnnl.DIFF_SRC: dx})

        operation = self.operation("function", (*inputs, out), (algorithm, alpha), build)
        operation(tuple(map(address, inputs)), (address(out),))

    @or_plain
    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        self.leave_small(y)
        require(set(factors) == {1.0})
        if len(arrays) == 1:
            self.copy(arrays[0], y)
            return
        with self._of_one_layout(arrays, [y]) as (first, *others, total):
            self.in_steps(first, total, [(dnnl.ADD, other) for other in others])

    @or_plain
    def multiply(self, a: Array, b: Array, y: Array) -> None:
        self.leave_small(y)
        with self._of_one_layout([a, b], [y]) as (a_, b_, y_):
            self.in_steps(a_, y_, [(dnnl.MULTIPLY, b_)])

    @contextlib.contextmanager
    def _of_one_layout(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Yields the arrays if all have the same dense layout; else as `dense` does."""
        first, *others = inside = [*inputs, *outputs]
        is_dense = first.flags.c_contiguous or (first.ndim > 2 and is_channels_last(first))
        if is_dense and all(other.strides == first.strides for other in others):
            yield inside
            return
        with self.dense(inputs, outputs) as inside:
            yield inside

    @or_plain
    def copy(self, x: Array, y: Array) -> None:
        if x.dtype == y.dtype:
            self.leave_small(y)

        def build() -> Operation:
            library = self.library
            layouts = [library.layout(array) for array in (x, y)]
            description = library.describe(
                "reorder", layouts[0], library.engine, layouts[1], library.engine, library.attributes()
            )
            return Operation(library, description, {dnnl.SRC: layouts[0]}, {dnnl.DST: layouts[1]})

        self.operation("reorder", (x, y), (), build)((address(x),), (address(y),))


@functools.cache
def _scalar(value: float, axes: int) -> Array:
    """An operand for all values of an array with so many axes."""
    return np.full((1,) * axes, value, np.float32)
