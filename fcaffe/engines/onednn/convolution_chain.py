"""Convolution with what stands behind it, in one primitive: folded into the weights, or step by step on each output.

Step by step the outputs have the bits of the convolution and of the layers behind it one by one, whose arithmetic the
library does on each output as it stores it: that is rounded as often, in the same order. What may differ is the order
in which the products of an output are summed up, if the library chooses another implementation or other blocks for the
longer primitive. So each is tried once, on random numbers, where another order shows in every second output.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.convolution import Folded, Steps
from fcaffe.engines.memory import check_room
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.convolution import Array, Convolution
from fcaffe.engines.onednn.operation import Operation
from fcaffe.engines.onednn.pieces import is_channels_last
from fcaffe.engines.windows import Windows
from fcaffe.errors import OutOfMemoryError

KINDS = {"subtract": dnnl.SUBTRACT, "divide": dnnl.DIVIDE, "multiply": dnnl.MULTIPLY, "add": dnnl.ADD}
DRAWN = 99_991  # random numbers, which are repeated: a prime, so that no two rows of an array begin with the same


class ConvolutionChain(Convolution):
    """Arguments as of Convolution."""

    _adding: dict[Hashable, bool]
    _same_bits: dict[Hashable, bool]

    if TYPE_CHECKING:

        def along_channels(self, x: Array, y: Array, steps: Sequence[tuple[int, Array]], relu: bool) -> None: ...

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
        operation = self._forward(x, weights, bias is not None, y, windows, group, relu, kinds, plus)
        if not self._steps_keep_bits(operation, x, weights, bias, y, windows, group, kinds, relu, plus):
            return False
        numbers = self.of_weights(steps.sources(), (steps, operation), steps.make) or steps.make()
        ins = address(x), address(weights), *map(address, _given(bias))
        operation(ins, (address(y), *map(address, numbers), *map(address, _given(plus))))
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
        """Whether the operation writes what the convolution and the steps one by one write. y is overwritten."""
        key = "steps", x.shape, weights.shape, y.shape, bias is None, kinds, windows, group, relu, plus is None

        def attempt() -> bool:
            if "ref" in operation.description.name:
                return False
            x_, plus_ = _drawn_last(x.shape), None if plus is None else _drawn_last(y.shape, 1)
            weights_, bias_ = _drawn(weights.shape, 2), None if bias is None else _drawn(bias.shape, 3)
            numbers = [_drawn(weights.shape[:1], number) for number in range(4, 4 + len(kinds))]
            expected = np.empty_like(y)
            self.convolution_forward(x_, weights_, bias_, expected, windows, group)
            self.along_channels(expected, expected, list(zip(kinds, numbers, strict=True)), relu and plus is None)
            self.add_to(plus_, expected, relu)
            ins = [address(z) for z in (x_, weights_, bias_) if z is not None]
            operation(tuple(ins), (address(y), *map(address, numbers), *map(address, _given(plus_))))
            return _same_bits(y, expected)

        return self._once(key, 2 * x.size + 4 * y.size, attempt)

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

        def attempt() -> bool:
            x, weights_, bias = (
                _drawn_last(shape),
                _drawn(weights.shape, 1),
                _drawn(weights.shape[:1], 2) if biased else None,
            )
            few = _places(x, apart)
            y, some = (
                _empty((shape[0], weights.shape[0], *each.convolved(z.shape[2:])))
                for z, each in ((x, windows), (few, replace(windows, stride=stride)))
            )
            self.convolution_forward(x, weights_, bias, y, windows, group)
            self.convolution_forward(few, weights_, bias, some, replace(windows, stride=stride), group)
            wanted = zip(apart, stride, windows.stride, strict=True)
            expected = _places(y, tuple(a * b // c for a, b, c in wanted))
            return expected.shape == some.shape and _same_bits(some, expected)

        size = weights.shape[0] * shape[0] * math.prod(windows.convolved(shape[2:]))
        return self._once(key, 4 * (math.prod(shape) + size), attempt)

    def _once(self, key: Hashable, values: int, attempt: Callable[[], bool]) -> bool:
        """What an attempt has found, whose arrays come and go like weights that change, and have so many values."""
        if key not in self._same_bits:
            try:
                check_room(4 * values)
            except OutOfMemoryError:
                return False
            with self.other_weights():
                self._same_bits[key] = attempt()
        return self._same_bits[key]


def _given(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)


def _empty(shape: tuple[int, ...]) -> Array:
    """Of this shape, with the channels last."""
    return np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.float32), -1, 1)


@functools.cache
def _pool() -> Array:
    """Random numbers between 0.5 and 2, or the same below zero."""
    random = np.random.default_rng(1)
    return random.uniform(0.5, 2, DRAWN).astype(np.float32) * random.choice(np.array([-1, 1], np.float32), DRAWN)


def _drawn(shape: tuple[int, ...], number: int = 0) -> Array:
    """Random numbers of this shape in C order, others for each `number`."""
    return np.resize(np.roll(_pool(), -number * DRAWN // 10)[: max(1, math.prod(shape))], shape)


def _drawn_last(shape: tuple[int, ...], number: int = 0) -> Array:
    """The same, with the channels last in memory."""
    return np.moveaxis(_drawn((shape[0], *shape[2:], shape[1]), number), -1, 1)


def _places(x: Array, apart: tuple[int, ...]) -> Array:
    """Every so many-th place of each spatial axis, with the channels last."""
    wanted = slice(None), slice(None), *(slice(None, None, step) for step in apart)
    few = x[wanted]
    made = _empty(few.shape)
    made[...] = few
    return made


def _same_bits(a: Array, b: Array) -> bool:
    return np.array_equal(*(channels_last(z).view(np.uint32) for z in (a, b)))
