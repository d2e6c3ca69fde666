"""A primitive with the reorders of its arguments, and the operators' base class.

A binary primitive computes a chain of elementwise operations in one pass over memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from ctypes import c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.limits import require
from fcaffe.engines.memory import Array, address, aligned_zeros
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.library import Library, post_operand
from fcaffe.engines.onednn.limits import LIMITS
from fcaffe.engines.onednn.primitives import Description, Layout, Memory, Primitive
from fcaffe.engines.onednn.threads import is_small

MOST = 4096  # cached operations
SMALL = 1 << 13  # values; below it NumPy is faster for elementwise work
ENOUGH = 64  # fewest uses of each factor of a product for which its conversion to bfloat16 pays
LONGEST = 1024  # longest sum of a product that is never split between threads

# A binary operation with an array, or a function of single values with its alpha and beta.
Step = tuple[int, Array] | tuple[int, float, float]
LayoutOf = Callable[[Array], Layout]


class Operation:
    """A compiled primitive. It is called with the addresses of its inputs and outputs, in the order of `__init__`.

    Arguments that do not have the implementation's layout are reordered through the library's temporary memory. A
    reorder may arrange weights in blocks of the vector width, or round values to bfloat16.
    """

    def __init__(
        self,
        library: Library,
        description: Description,
        inputs: dict[int, Layout],
        outputs: dict[int, Layout],
        opaque: Sequence[int] = (),
        chained: Mapping[int, Layout] | None = None,
    ) -> None:
        """The implementation chooses the layout of the `opaque` arguments, which follow the outputs. Last come the
        `chained` arrays, the operands of the attributes' steps. Their layouts are keyed by the step's index."""
        self.library = library
        self.description = description
        self.chained = chained or {}
        kinds = (*inputs, *outputs, *opaque)
        operands: dict[int, Memory] = {kind: description.layout_of(kind) for kind in kinds}
        operands.update((post_operand(step), layout) for step, layout in self.chained.items())
        self.primitive = Primitive(description, operands)
        self._inputs: list[tuple[int, int, Primitive | None]] = []  # kind, size and reorder
        for kind, layout in inputs.items():
            fits, wanted = description.wants(kind, layout), description.layout_of(kind)
            self._inputs.append((kind, description.size_of(kind), None if fits else reorder(library, layout, wanted)))
        self._outputs = list(outputs.items())
        self._reorders_out: dict[tuple[int, bool], Primitive | None] = {}

    def __call__(
        self, inputs: tuple[int, ...], outputs: tuple[int, ...], add: bool = False, ready: int | None = None
    ) -> None:
        """Write the outputs, or with `add` add to them. The input of index `ready` has the right layout already."""
        library = self.library
        with library.lock:
            addresses = list(inputs)
            for index, (kind, size, reorder_in) in enumerate(self._inputs):
                if reorder_in is not None and index != ready:
                    addresses[index] = library.temporary(kind, size)
                    reorder_in(inputs[index], addresses[index])
            after = []
            for (kind, layout), target in zip(self._outputs, outputs, strict=False):
                reorder_out = self._reorder_out(kind, layout, add)
                if reorder_out is None:
                    addresses.append(target)
                else:
                    addresses.append(library.temporary(kind, self.description.size_of(kind)))
                    after.append((reorder_out, addresses[-1], target))
            self.primitive(*addresses, *outputs[len(self._outputs) :])
            for back, temporary, target in after:
                back(temporary, target)

    def ready(self, index: int, array: np.ndarray) -> np.ndarray:
        """The array in the layout of the input of this index: itself or a copy."""
        _, size, reorder_in = self._inputs[index]
        if reorder_in is None:
            return array
        copy: np.ndarray = aligned_zeros(np, -(-size // 4))
        reorder_in(address(array), address(copy))
        return copy

    def reorders(self, index: int) -> bool:
        """Whether the input of this index has another layout."""
        return self._inputs[index][2] is not None

    def _reorder_out(self, kind: int, layout: Layout, add: bool) -> Primitive | None:
        if (kind, add) not in self._reorders_out:
            needed = add or not self.description.wants(kind, layout)
            wanted = self.description.layout_of(kind)
            with self.library.threads.one(self.primitive.by_one):
                self._reorders_out[kind, add] = reorder(self.library, wanted, layout, add) if needed else None
        return self._reorders_out[kind, add]


class Operations(PlainElementwise):
    """Base of the operators: compiles one operation for each signature (shapes, strides, settings).

    Factors of products have type `math`, F32 or BF16, and all sums are float32. Arrays may have either type. A
    signature distinguishes them by their strides, in bytes. What the library cannot compute is left to plain operators.
    """

    library: Library
    math: int
    _operations: dict[Hashable, Operation]

    @contextlib.contextmanager
    def dense(self, inputs: Sequence[Any], outputs: Sequence[Any], like: Any = None) -> Iterator[list[Any]]:
        """Yields the inputs, then the outputs, as arrays or copies with the strides of `like`. Without it they are
        channels-last, or in C order up to two axes. Copies of outputs are copied back. NumPy is slow on mixed ones."""
        inside = [_stand_in(array, like) for array in (*inputs, *outputs)]
        for array, stand_in in zip(inputs, inside, strict=False):
            if stand_in is not array:
                self.copy(array, stand_in)
        yield inside
        for array, stand_in in zip(outputs, inside[len(inputs) :], strict=True):
            if stand_in is not array:
                self.copy(stand_in, array)

    def leave_small(self, x: Any) -> None:
        """Raise UnfitError where NumPy is faster for elementwise work. It is not if a tape records, since a replay
        needs no Python."""
        require(x.size >= SMALL or self.library.tape is not None)

    def operation(
        self,
        kind: str,
        arrays: Sequence[Array],
        settings: tuple[Hashable, ...],
        build: Callable[[], Operation],
        same_bits: bool = True,
        multiply_adds: int = 0,
    ) -> Operation:
        """The operation of this kind, a key of LIMITS, on such arrays. Raises UnfitError if the library has none.

        `same_bits`: they do not depend on the number of threads, so one thread runs a small operation.
        """
        key = (kind, settings, *[(array.shape, array.strides) for array in arrays])
        found = self._operations.get(key)
        if found is None:
            LIMITS[kind].check(arrays, *settings)
            if len(self._operations) >= MOST:  # for nets that change their shapes all the time
                self._operations.clear()
            with self.library.lock, self.library.threads.one(same_bits and is_small(arrays, multiply_adds)):
                found = self._operations[key] = build()
        return found

    def run(self, operation: Operation, inputs: Sequence[Array], y: Array, weights: Array = None) -> None:
        """Run an operation. Its second input is a view of `weights`, which a layer may cache in the right layout."""
        reordered = None
        if weights is not None and self.derived is not None and operation.reorders(1):
            reordered = self.of_weights(operation, lambda: operation.ready(1, inputs[1]), weights)
        addresses = [address(array) for array in inputs]
        if reordered is not None:
            addresses[1] = address(reordered)
        operation(tuple(addresses), (address(y),), ready=None if reordered is None else 1)

    def product(self, a: Array, b: Array, bias: Array, c: Array, add: bool = False, weights: Array = None) -> None:
        """c = a @ b + bias, added to c with `add`. If b is a view of weights, these are `weights`."""

        def build() -> Operation:
            library = self.library
            worth_rounding = min(*a.shape, b.shape[1]) >= ENOUGH
            math = self.math if worth_rounding else dnnl.F32
            factors = [library.layout(z, math) for z in (a, b)]
            third = c_void_p() if bias is None else library.layout(bias)
            target = library.layout(c)
            made = target if worth_rounding else library.layout(c, dnnl.F32)
            attributes = library.attributes([None] * add)
            description = library.describe("matmul", library.engine, *factors, third, made, attributes)
            inputs = {dnnl.SRC: library.layout(a), dnnl.WEIGHTS: library.layout(b)}
            if bias is not None:
                inputs[dnnl.BIAS] = library.layout(bias)
            return Operation(library, description, inputs, {dnnl.DST: target})

        same_bits = a.shape[1] <= LONGEST  # longer sums are split between the threads
        operation = self.operation("matmul", (a, b, c), (bias is None, add), build, same_bits, a.size * b.shape[1])
        self.run(operation, (a, b) if bias is None else (a, b, bias), c, weights)

    def in_steps(
        self,
        x: Array,
        y: Array,
        steps: Sequence[Step],
        relu: bool = False,
        layout: LayoutOf | None = None,
    ) -> None:
        """y = x after these steps, then Caffe's ReLU with `relu`. The first step has an array.

        Every step rounds. All arrays have the same dense memory order. `layout` describes an array; the default is
        `Library.layout`.
        """
        arrays = [step[1] for step in steps if len(step) == 2]

        def build() -> Operation:
            library, of = self.library, layout or self.library.layout
            others = [(step[0], of(step[1])) if len(step) == 2 else step for step in steps[1:]]
            inputs, outputs = {dnnl.SRC: of(x), dnnl.SRC_1: of(arrays[0])}, {dnnl.DST: of(y)}
            layouts = c_int(steps[0][0]), *inputs.values(), *outputs.values()
            description = library.describe("binary", library.engine, *layouts, library.attributes(others, relu))
            chained = {index: step[1] for index, step in enumerate(others) if len(step) == 2}
            return Operation(library, description, inputs, outputs, chained=chained)

        kinds = tuple([step[0] if len(step) == 2 else step for step in steps])
        operation = self.operation("channels" if layout else "binary", (x, y, *arrays), (relu, kinds), build)
        first, *others = map(address, arrays)
        operation((address(x), first), (address(y), *others))


def _stand_in(array: Any, like: Any) -> Any:
    """The array if it has the layout that `Operations.dense` wants, else a new one of its shape."""
    if like is not None:
        return array if array.strides == like.strides else np.empty_like(like, array.dtype)
    if array.ndim < 3:
        return array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
    last = channels_last(array)
    return array if last.flags.c_contiguous else np.moveaxis(np.empty(last.shape, array.dtype), -1, 1)


def reorder(library: Library, source: Memory, target: Memory, add: bool = False) -> Primitive:
    """A copy from one layout and type to another, called with (source, target)."""
    attributes = library.attributes([None] * add)
    description = library.describe("reorder", source, library.engine, target, library.engine, attributes)
    return Primitive(description, {dnnl.SRC: source, dnnl.DST: target})
