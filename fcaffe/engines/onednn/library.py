"""oneDNN for the operators: layouts of arrays, attributes and descriptions of operations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import c_float, c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.engines.onednn.calls import Calls
from fcaffe.engines.onednn.dnnl import BF16, F32, HARD_SWISH, LINEAR, POST_OPERATION, SRC_1, U8
from fcaffe.engines.onednn.primitives import Description, Layout
from fcaffe.threads import renew_in_forks

SCRATCHPAD_OF_USER = 1  # dnnl_scratchpad_mode_t
VECTOR = 16  # float32 values of AVX-512

# The upper two bytes of a float32. NumPy has no such type; with opaque bytes it refuses to compute, where with integers
# it would compute nonsense.
BFLOAT16 = np.dtype("V2")

# A step of `Library.attributes`: a binary operation with an array of this layout, which is the primitive's argument
# `post_operand`; a function of single values with its parameters alpha and beta; or None, the sum with the old output.
Step = tuple[int, Layout] | tuple[int, float, float] | None

# Caffe's ReLU, max(x, 0) + 0 * min(x, 0). oneDNN's own gives 0 for NaN; its hard swish, x * clip(FLT_MAX * x, 0, 1),
# gives NaN for NaN and for -inf, as Caffe does, and takes the same time. Adding 0 makes 0 of its -0.
RELU: Sequence[tuple[int, float, float]] = ((HARD_SWISH, FLT_MAX, 0), (LINEAR, 1, 0))


class Library(Calls):
    """An engine and a stream of oneDNN, with layouts and attributes for the operators."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # Held while an operator builds or runs primitives. All callers share their arguments and the temporary memory,
        # and update rules run on several threads.
        self.lock = threading.RLock()
        renew_in_forks(self)

    def after_fork(self) -> None:
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:  # another thread of the parent was at work
            self.lock, self.threads.for_one = threading.RLock(), False

    def layout(self, array: np.ndarray, data_type: int | None = None) -> Layout:
        """The descriptor of an array, with its type or the given one."""
        return Layout(self, array.shape, data_type or type_of(array), _strides(array))

    def channels_last(self, array: np.ndarray, data_type: int | None = None) -> Layout:
        """The descriptor of a dense channels-last array (up to two axes: C order) of this shape, and of its type or the
        given one.

        The library's implementations for other orders are incomplete: the rest is reference code, a hundred times
        slower.
        """
        return Layout(self, array.shape, data_type or type_of(array), _dense(array.shape, _orders(array.ndim)[0]))

    def attributes(self, steps: Sequence[Step] = (), relu: bool = False) -> c_void_p:
        """Attributes of a primitive that applies these steps to its result, then with `relu` Caffe's ReLU."""
        attributes, chain = self.create("primitive_attr_create"), self.create("post_ops_create")
        self.call("primitive_attr_set_scratchpad_mode", attributes, c_int(SCRATCHPAD_OF_USER))
        for step in (*steps, *(RELU if relu else ())):
            if step is None:
                self.call("post_ops_append_sum", chain, c_float(1), c_int(0), c_int(0))
            elif len(step) == 2:
                self.call("post_ops_append_binary", chain, c_int(step[0]), step[1])
            else:
                kind, alpha, beta = step
                self.call("post_ops_append_eltwise", chain, c_int(kind), c_float(alpha), c_float(beta))
        self.call("primitive_attr_set_post_ops", attributes, chain)
        self.call("post_ops_destroy", chain)
        self.destroy_with(attributes, "primitive_attr", c_void_p(attributes.value))
        return attributes

    def describe(self, name: str, *arguments: Any) -> Description:
        """dnnl_`name`_primitive_desc_create with these arguments."""
        return Description(self, self.create(f"{name}_primitive_desc_create", *arguments))


def post_operand(step: int) -> int:
    """The argument of a primitive for the array of a step of its attributes."""
    return POST_OPERATION * (step + 1) | SRC_1


def type_of(array: np.ndarray) -> int:
    """The dnnl_data_type_t of an array."""
    return BF16 if array.dtype == BFLOAT16 else U8 if array.dtype == np.uint8 else F32


def _strides(array: np.ndarray) -> tuple[int, ...]:
    """Strides in elements. An axis of one element may have any stride; oneDNN needs that of its formats."""
    steps = tuple(step // array.itemsize for step in array.strides)
    for order in _orders(array.ndim):
        dense = _dense(array.shape, order)
        if all(length == 1 or a == b for length, a, b in zip(array.shape, steps, dense, strict=True)):
            return dense
    return steps


def _orders(axes: int) -> tuple[tuple[int, ...], ...]:
    """The memory orders of blobs with so many axes: channels-last and C order."""
    in_c = tuple(range(axes))
    return ((0, *in_c[2:], 1), in_c) if axes > 1 else (in_c,)


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a dense array with this memory order."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)
