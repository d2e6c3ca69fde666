"""Convolution with what stands behind it, in one primitive: folded into the weights, or step by step on each output.

Step by step the outputs have the bits of the convolution and of the layers behind it one by one, whose arithmetic the
library does on each output as it stores it: that is rounded as often, in the same order. What may differ is the order
in which the products of an output are summed up, if the library chooses another implementation or other blocks for the
longer primitive, and what becomes of NaN, infinities and zeros below 0. So each is tried once (see trials.py), against
the operators that the layers call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe.engines.convolution import Folded, Steps
from fcaffe.engines.memory import check_room
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.convolution import Array, Convolution
from fcaffe.engines.onednn.operation import SMALL, Operation
from fcaffe.engines.onednn.pieces import is_channels_last
from fcaffe.engines.trials import drawn, drawn_last, empty_last, few_places, same_bits
from fcaffe.engines.windows import Windows
from fcaffe.errors import OutOfMemoryError

KINDS = {"subtract": dnnl.SUBTRACT, "divide": dnnl.DIVIDE, "multiply": dnnl.MULTIPLY, "add": dnnl.ADD}
BY_NUMPY = {dnnl.SUBTRACT: np.subtract, dnnl.DIVIDE: np.divide, dnnl.MULTIPLY: np.multiply, dnnl.ADD: np.add}
# Of a channel whose outputs are 0: the numbers by which the last of these steps makes them -0, as ReLU may find them.
TO_MINUS_ZERO = {dnnl.SUBTRACT: 0.0, dnnl.DIVIDE: 1.0, dnnl.MULTIPLY: -1.0, dnnl.ADD: -0.0}


class ConvolutionChain(Convolution):
    """Arguments as of Convolution."""

    _adding: dict[Hashable, bool]
    _same_bits: dict[Hashable, bool]

    if TYPE_CHECKING:

        def batch_norm_apply(
            self, x: Array, y: Array, mean: Array, variance: Array, affine: Any, eps: float, relu: bool
        ) -> None: ...

        def scale_channels(self, x: Array, y: Array, scale: Array, shift: Array, relu: bool = False) -> None: ...

        def weighted_sum(self, arrays: Sequence[Array], factors: Sequence[float], y: Array) -> None: ...

        def relu_forward(self, x: Array, y: Array, slope: float) -> None: ...

        def other_weights(self) -> Any: ...

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
        operation = self._forward(x, weights, True, y, windows, group, relu and within, (), added)

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

    def _adds(self, x: Array, weights: Array, y: Array, windows: Windows, group: int, relu: bool, plus: Array) -> bool:
        """Whether the convolution can add an array as it stores its outputs, by more than the reference code."""
        key = "adds", x.shape, weights.shape, y.shape, y.strides, plus.strides, windows, group
        found = self._adding.get(key)
        if found is None:
            chain = self._chain(y, (), plus)
            found = self._adding[key] = (
                plus.strides == y.strides
                and "ref" not in self._describe_forward(x, weights, True, y, windows, group, relu, chain).name
            )
        return found

    def convolution_in_steps(
        self,
        x: Array,
        weights: Array,
        bias: Array | None,
        y: Array,
        windows: Windows,
        group: int,
        steps: Steps,
        relu: bool,
        plus: Array | None,
    ) -> bool:
        if not x.size or not windows.kernel or any(not is_channels_last(z) for z in (x, y, *_given(plus))):
            return False
        kinds = tuple(KINDS[kind] for kind in steps.kinds)
        within = relu and y.size >= SMALL  # others are NumPy's, for which NaN is not below 0
        operation = self._forward(x, weights, bias is not None, y, windows, group, within, kinds, plus)
        if not self._steps_keep_bits(operation, x, weights, bias, y, windows, group, kinds, within, plus):
            return False
        numbers = self.of_weights(steps.sources(), (steps, operation), steps.make) or steps.make()
        ins = address(x), address(weights), *map(address, _given(bias))
        operation(ins, (address(y), *map(address, numbers), *map(address, _given(plus))))
        if relu and not within:
            self.relu_forward(y, y, 0)
        return True

    def _steps_keep_bits(
        self,
        operation: Operation,
        x: Array,
        weights: Array,
        bias: Array | None,
        y: Array,
        windows: Windows,
        group: int,
        kinds: tuple[int, ...],
        relu: bool,
        plus: Array | None,
    ) -> bool:
        """Whether the operation writes what the layers one by one write. y is overwritten."""
        key = "steps", x.shape, weights.shape, y.shape, bias is None, kinds, windows, group, relu, plus is None

        def attempt(special: bool) -> bool:
            if "ref" in operation.description.name:
                return False
            x_, plus_ = drawn_last(x.shape, 0, special), None if plus is None else drawn_last(y.shape, 1, special)
            weights_ = drawn(weights.shape, 2, special)
            bias_ = None if bias is None else drawn(bias.shape, 3, special)
            numbers = [drawn(weights.shape[:1], index, special) for index in range(4, 4 + len(kinds))]
            for kind, number in zip(kinds, numbers, strict=True):
                if kind == dnnl.DIVIDE:  # by a deviation, which is the root of its square
                    number[...] = np.sqrt(np.square(number))
                if special:
                    number[0] = TO_MINUS_ZERO[kind]
            for z in (weights_, *_given(bias_)) if special else ():
                z[0] = 0
            expected = np.empty_like(y)
            self.convolution_forward(x_, weights_, bias_, expected, windows, group)
            self._step_by_step(expected, kinds, numbers)
            if plus_ is not None:
                self.weighted_sum([expected, plus_], [1.0, 1.0], expected)
            if relu:
                self.relu_forward(expected, expected, 0)
            ins = [address(z) for z in (x_, weights_, bias_) if z is not None]
            operation(tuple(ins), (address(y), *map(address, numbers), *map(address, _given(plus_))))
            return same_bits(y, expected)

        return self._once(key, 2 * x.size + 5 * y.size, attempt)

    def _step_by_step(self, y: Array, kinds: tuple[int, ...], numbers: Sequence[Array]) -> None:
        """Do with y in place what BatchNorms, Scales and Biases do."""
        index = 0
        while index < len(kinds):
            pair = kinds[index : index + 2]
            if pair == (dnnl.SUBTRACT, dnnl.DIVIDE):
                self.batch_norm_apply(y, y, numbers[index], np.square(numbers[index + 1]), None, 0, False)
            elif pair == (dnnl.MULTIPLY, dnnl.ADD):
                self.scale_channels(y, y, *numbers[index : index + 2])
            else:
                pair = pair[:1]
                BY_NUMPY[pair[0]](y, numbers[index].reshape(-1, *(1,) * (y.ndim - 2)), out=y)
            index += len(pair)

    def convolves_few(
        self,
        shape: tuple[int, ...],
        weights: Array,
        biased: bool,
        windows: Windows,
        group: int,
        apart: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> bool:
        key = "few", shape, weights.shape, biased, windows, group, apart, stride

        def attempt(special: bool) -> bool:
            x, weights_ = drawn_last(shape, 0, special), drawn(weights.shape, 1, special)
            bias = drawn(weights.shape[:1], 2, special) if biased else None
            few = few_places(x, apart)
            y, some = (
                empty_last((shape[0], weights.shape[0], *each.convolved(z.shape[2:])))
                for z, each in ((x, windows), (few, replace(windows, stride=stride)))
            )
            self.convolution_forward(x, weights_, bias, y, windows, group)
            self.convolution_forward(few, weights_, bias, some, replace(windows, stride=stride), group)
            if (y.size < SMALL) != (some.size < SMALL):  # a ReLU behind it is NumPy's of the one alone, see `at_once`
                return False
            wanted = zip(apart, stride, windows.stride, strict=True)
            expected = few_places(y, tuple(a * b // c for a, b, c in wanted))
            return expected.shape == some.shape and same_bits(some, expected)

        size = weights.shape[0] * shape[0] * math.prod(windows.convolved(shape[2:]))
        return self._once(key, 4 * (math.prod(shape) + size), attempt)

    def _once(self, key: Hashable, values: int, attempt: Callable[[bool], bool]) -> bool:
        """What attempts with and without special numbers have found, whose arrays come and go like weights that change,
        and have so many values."""
        if key not in self._same_bits:
            try:
                check_room(4 * values)
            except OutOfMemoryError:
                return False
            with self.other_weights(), np.errstate(all="ignore"):
                self._same_bits[key] = attempt(False) and attempt(True)
        return self._same_bits[key]


def _given(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)
