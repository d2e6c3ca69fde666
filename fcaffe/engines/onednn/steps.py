"""Chains of elementwise operations that one binary primitive computes in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int

from fcaffe.engines.memory import Array, address
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.primitives import Layout

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
        layout: LayoutOf | None = None,
    ) -> None:
        """y = x after these steps, then Caffe's ReLU with `relu`. The first step has an array.

        Every step rounds. All arrays lie in the same dense order. `layout` describes one; by default as it is.
        """
        arrays = [step[1] for step in steps if len(step) == 2]

        def build() -> Operation:
            library, of = self.library, layout or self.library.layout
            others = [(step[0], of(step[1])) if len(step) == 2 else step for step in steps[1:]]
            inputs, outputs = {dnnl.SRC: of(x), dnnl.SRC_1: of(arrays[0])}, {dnnl.DST: of(y)}
            layouts = c_int(steps[0][0]), *inputs.values(), *outputs.values()
            description = library.describe("binary", library.engine, *layouts, library.chain(others, relu))
            chained = {index: step[1] for index, step in enumerate(others) if len(step) == 2}
            return Operation(library, description, inputs, outputs, chained=chained)

        kinds = [(step[0], step[1].shape, step[1].strides) if len(step) == 2 else step for step in steps]
        whole = [array for array in arrays if array.size == x.size]
        operation = self.operation(("steps", x.shape, x.strides, y.strides, relu, *kinds), build, (x, *whole, y))
        first, *others = map(address, arrays)
        operation((address(x), first), (address(y), *others))
