"""Chains of elementwise operations that one binary primitive computes in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import Any

from fcaffe.engines.memory import address
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.primitives import Layout

Array = Any
# A binary operation with an array, or a function of single values with its alpha and beta.
Step = tuple[int, Array] | tuple[int, float, float]
LayoutOf = Callable[[Array], Layout]


class Steps(Operations):
    def in_steps(
        self,
        x: Array,
        y: Array,
        steps: Sequence[Step],
        relu: bool = False,
        wanted: LayoutOf | None = None,
        given: LayoutOf | None = None,
    ) -> None:
        """y = x after these steps, of which the first has an array, then Caffe's ReLU with `relu`.

        Every step rounds. x, y and the first array have the layouts that `given` returns, and are reordered to those
        that `wanted` returns. All other arrays have the latter. Both default to the arrays' own layouts.
        """
        arrays = [step[1] for step in steps if len(step) == 2]

        def build() -> Operation:
            library, lying = self.library, given or wanted or self.library.layout
            computed = wanted or library.layout
            others = [(step[0], computed(step[1])) if len(step) == 2 else step for step in steps[1:]]
            layouts = c_int(steps[0][0]), computed(x), computed(arrays[0]), computed(y)
            description = library.describe("binary", library.engine, *layouts, library.chain(others, relu))
            inputs = {dnnl.SRC: lying(x), dnnl.SRC_1: lying(arrays[0])}
            chained = {index: step[1] for index, step in enumerate(others) if len(step) == 2}
            return Operation(library, description, inputs, {dnnl.DST: lying(y)}, chained=chained)

        kinds = [(step[0], step[1].shape, step[1].strides) if len(step) == 2 else step for step in steps]
        whole = [array for array in arrays if array.size == x.size]
        operation = self.operation(("steps", x.shape, x.strides, y.strides, relu, *kinds), build, (x, *whole, y))
        first, *others = map(address, arrays)
        operation((address(x), first), (address(y), *others))
