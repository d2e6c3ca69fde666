"""Operators on single values by oneDNN's primitives: ReLU, sums, products, copies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fcaffe.engines.channels import is_channels_last
from fcaffe.engines.elementwise import FLT_MAX, PlainElementwise
from fcaffe.engines.formulas import Formula
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.formulas import Pass, passes_of
from fcaffe.engines.onednn.library import RELU
from fcaffe.engines.onednn.operation import Operation, Operations, Step


class Elementwise(Operations, PlainElementwise):
    """Arrays of equal strides are used in place; others are copied to channels-last first."""

    _passes: dict[Formula, list[Pass] | None]

    def pointwise(self, formula: Formula, arrays: Mapping[str, Array], out: Array) -> None:
        if formula not in self._passes:
            self._passes[formula] = passes_of(formula.tree)
        passes = self._passes[formula]
        if self.is_left_to_numpy(out) or any(array.shape != out.shape for array in arrays.values()):
            super().pointwise(formula, arrays, out)
            return
        with self._of_one_layout(list(arrays.values()), [out]) as inside:
            known = dict(zip((*arrays, "out"), inside, strict=True))
            if passes is None or not arrays:
                super().pointwise(formula, {name: known[name] for name in arrays}, known["out"])
                return
            for start, steps, target in passes:
                if target not in known:
                    known[target] = np.empty_like(known["out"])
                bound: list[Any] = [(step[0], known[step[1]]) if isinstance(step[1], str) else step for step in steps]
                if not bound or len(bound[0]) == 3:
                    bound.insert(0, (dnnl.MAX, known[start]))  # a chain begins with an array
                self.in_steps(known[start], known[target], bound)

    def relu_forward(self, x: Array, y: Array, slope: float) -> None:
        if self.is_left_to_numpy(x) or slope < 0:
            super().relu_forward(x, y, slope)
        else:
            self._map(x, y, ((dnnl.RELU, slope, 0),) if slope else RELU)

    def relu_backward(self, y: Array, dy: Array, dx: Array, slope: float) -> None:
        if self.is_left_to_numpy(y) or not 0 <= slope <= 1:
            super().relu_backward(y, dy, dx, slope)
            return
        steps = (dnnl.LINEAR, FLT_MAX, 0), (dnnl.CLIP, slope, 1)  # 1 for positive values, the slope for others and NaN
        with self._of_one_layout([y, dy], [dx]) as (y_, dy_, dx_):
            self.in_steps(y_, dx_, [(dnnl.MAX, y_), *steps, (dnnl.MULTIPLY, dy_)])

    def _map(self, x: Array, y: Array, steps: Sequence[Step]) -> None:
        """y = x after these steps, of which the first must have an array: the maximum of x and x."""
        with self._of_one_layout([x], [y]) as (x_, y_):
            self.in_steps(x_, y_, [(dnnl.MAX, x_), *steps])

    def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None:
        if self.is_left_to_numpy(y) or set(factors) != {1.0}:
            super().weighted_sum(arrays, factors, y)
        elif len(arrays) == 1:
            self.copy(arrays[0], y)
        else:
            with self._of_one_layout(arrays, [y]) as (first, *others, total):
                self.in_steps(first, total, [(dnnl.ADD, other) for other in others])

    def multiply(self, a: Array, b: Array, y: Array) -> None:
        if self.is_left_to_numpy(y):
            super().multiply(a, b, y)
            return
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

    def copy(self, x: Array, y: Array) -> None:
        if (self.is_left_to_numpy(y) and x.dtype == y.dtype) or not (_has_layout(x) and _has_layout(y)):
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
