"""Local response normalisation by oneDNN's primitives; batch normalisation has a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_byte, c_float, c_int, c_int64
from typing import Any

import numpy as np

from fcaffe.engines.memory import Array
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.batch_norm import BatchNorm
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import VECTOR
from fcaffe.engines.onednn.operation import Operation
from fcaffe.engines.onednn.primitives import Description

ACROSS_CHANNELS = 0xAFF  # dnnl_lrn_across_channels


class Normalization(BatchNorm):
    lrn_memory = 2

    def lrn_forward(self, x: Array, y: Array, memory: Array, size: int, alpha: float, beta: float, k: float) -> None:
        if not self._lrn_is_fast(x, size, beta, memory is not None):
            plain_memory = None if memory is None else memory[: x.shape[0]]
            with self.channels_last([x], [y]) as (x_, y_):
                super().lrn_forward(x_, y_, plain_memory, size, alpha, beta, k)
            return

        def build() -> Operation:
            library = self.library
            description = self._describe_lrn(x, size, alpha, beta, k, memory is not None)
            opaque = [] if memory is None else [dnnl.WORKSPACE]
            return Operation(library, description, {dnnl.SRC: library.layout(x)}, {dnnl.DST: library.layout(y)}, opaque)

        key = ("LRN", x.shape, x.strides, y.strides, size, alpha, beta, k, memory is None)
        outs = (address(y),) if memory is None else (address(y), address(memory))
        self.operation(key, build, (x, y))((address(x),), outs)

    def lrn_backward(
        self, x: Array, y: Array, memory: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float, k: float
    ) -> None:
        if not self._lrn_is_fast(x, size, beta, True):
            with self.channels_last([x, y, dy], [dx]) as (x_, y_, dy_, dx_):
                super().lrn_backward(x_, y_, memory[: x.shape[0]], dy_, dx_, size, alpha, beta, k)
            return

        def build() -> Operation:
            library = self.library
            description = library.describe(
                "lrn_backward",
                library.engine,
                c_int(ACROSS_CHANNELS),
                library.channels_last(dx),
                library.channels_last(dy),
                library.channels_last(x),
                *_lrn_numbers(size, alpha, beta, k),
                self._describe_lrn(x, size, alpha, beta, k, True),
                library.attributes(),
            )
            inputs = {dnnl.SRC: library.layout(x), dnnl.DIFF_DST: library.layout(dy)}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)}, [dnnl.WORKSPACE])

        key = ("LRN backward", x.shape, x.strides, dy.strides, dx.strides, size, alpha, beta, k)
        self.operation(key, build, (x, dy, dx))((address(x), address(dy)), (address(dx), address(memory)))

    def _lrn_is_fast(self, x: Array, size: int, beta: float, training: bool) -> bool:
        """Whether oneDNN has more than its reference code for this LRN, and in training for its gradient.

        The reference code of version 3.2 errs for channels that fill a part of a vector, and its backward pass ends the
        process for one channel. That of bfloat16 errs for windows of more than 5 channels.
        """
        most = VECTOR if x.dtype == np.float32 else 5
        known = 1 < size <= most if self.library.has_avx512() else size == 5 and not training
        return known and x.size > 0 and beta == 0.75 and x.shape[1] % VECTOR == 0

    def _describe_lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, training: bool) -> Description:
        library, layout = self.library, self.library.channels_last(x)
        return library.describe(
            "lrn_forward",
            library.engine,
            c_int(dnnl.FORWARD_TRAINING if training else dnnl.FORWARD_INFERENCE),
            c_int(ACROSS_CHANNELS),
            layout,
            layout,
            *_lrn_numbers(size, alpha, beta, k),
            library.attributes(),
        )

    def softmax_forward(self, x: Array, y: Array, axis: int) -> None:
        """The bits do not depend on the arrays' order in memory. A recording repeats NumPy's five calls."""
        with self.channels_last([x], [y]) as (x_, y_):
            tape = self.library.tape
            if tape is None or not x.size or {x.dtype, y.dtype} != {np.dtype(np.float32)}:
                super().softmax_forward(x_, y_, axis)
                return
            again = _softmax(x_, y_, axis)
            tape.add(again, True, (address(x_), address(y_)))
            again()

    def softmax_backward(self, y: Array, dy: Array, dx: Array, axis: int) -> None:
        with self.channels_last([y, dy], [dx]) as (y_, dy_, dx_):
            super().softmax_backward(y_, dy_, dx_, axis)


def _lrn_numbers(size: int, alpha: float, beta: float, k: float) -> tuple[Any, ...]:
    return c_int64(size), c_float(alpha), c_float(beta), c_float(k)


def _softmax(x: Array, y: Array, axis: int) -> Callable[[], int]:
    """A function for a tape that writes softmax of the memory of x into that of y, and returns a status. It keeps
    neither alive."""
    x, y = (
        np.ndarray(each.shape, each.dtype, (c_byte * each.nbytes).from_address(address(each)), strides=each.strides)
        for each in (x, y)
    )
    folded = x.max(axis=axis, keepdims=True)

    def run() -> int:
        np.maximum.reduce(x, axis=axis, keepdims=True, out=folded)
        np.exp(np.subtract(x, folded, out=y), out=y)
        np.add.reduce(y, axis=axis, keepdims=True, out=folded)
        np.divide(y, folded, out=y)
        return 0

    return run
