"""Local response normalisation and softmax by oneDNN's primitives; batch normalisation has a file of its own."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64
from typing import Any

from fcaffe.engines.onednn import library as dnnl
from fcaffe.engines.onednn.batch_norm import BatchNorm
from fcaffe.engines.onednn.library import address
from fcaffe.engines.onednn.operation import Operation

ACROSS_CHANNELS, SOFTMAX = 0xAFF, 0x30000  # dnnl_lrn_across_channels, dnnl_softmax_accurate

VECTOR = 16  # float32 values of AVX-512

Array = Any


class Normalization(BatchNorm):
    lrn_memory = 2

    def lrn_forward(self, x: Array, y: Array, memory: Array, size: int, alpha: float, beta: float, k: float) -> None:
        if not _is_fast(x, size, beta):
            plain_memory = None if memory is None else memory[: x.shape[0]]
            super().lrn_forward(x, y, plain_memory, size, alpha, beta, k)
            return

        def build() -> Operation:
            library = self.library
            description = self._describe_lrn(x, size, alpha, beta, k, memory is not None)
            opaque = [] if memory is None else [dnnl.WORKSPACE]
            return Operation(library, description, {dnnl.SRC: library.layout(x)}, {dnnl.DST: library.layout(y)}, opaque)

        key = ("LRN", x.shape, x.strides, y.strides, size, alpha, beta, k, memory is None)
        places = (address(y),) if memory is None else (address(y), address(memory))
        self.operation(key, build)((address(x),), places)

    def lrn_backward(
        self, x: Array, y: Array, memory: Array, dy: Array, dx: Array, size: int, alpha: float, beta: float, k: float
    ) -> None:
        if not _is_fast(x, size, beta):
            super().lrn_backward(x, y, memory[: x.shape[0]], dy, dx, size, alpha, beta, k)
            return

        def build() -> Operation:
            library = self.library
            description = library.describe(
                "lrn_backward",
                library.engine,
                c_int(ACROSS_CHANNELS),
                library.layout(dx),
                library.layout(dy),
                library.layout(x),
                *_lrn_numbers(size, alpha, beta, k),
                self._describe_lrn(x, size, alpha, beta, k, True),
                library.attributes(),
            )
            inputs = {dnnl.SRC: library.layout(x), dnnl.DIFF_DST: library.layout(dy)}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)}, [dnnl.WORKSPACE])

        key = ("LRN backward", x.shape, x.strides, dy.strides, dx.strides, size, alpha, beta, k)
        self.operation(key, build)((address(x), address(dy)), (address(dx), address(memory)))

    def _describe_lrn(
        self, x: Array, size: int, alpha: float, beta: float, k: float, training: bool
    ) -> dnnl.Description:
        library, layout = self.library, self.library.layout(x)
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
        if not x.size or x.strides != y.strides:
            super().softmax_forward(x, y, axis)
            return

        def build() -> Operation:
            library = self.library
            inputs, outputs = {dnnl.SRC: library.layout(x)}, {dnnl.DST: library.layout(y)}
            return Operation(library, self._describe_softmax(x, y, axis), inputs, outputs)

        self.operation(("softmax", x.shape, x.strides, y.strides, axis), build)((address(x),), (address(y),))

    def softmax_backward(self, y: Array, dy: Array, dx: Array, axis: int) -> None:
        if not y.size or not y.strides == dy.strides == dx.strides:  # oneDNN 3.2 errs then
            super().softmax_backward(y, dy, dx, axis)
            return

        def build() -> Operation:
            library = self.library
            description = library.describe(
                "softmax_backward",
                library.engine,
                c_int(SOFTMAX),
                library.layout(dx),
                library.layout(dy),
                library.layout(y),
                c_int(axis),
                self._describe_softmax(y, y, axis),
                library.attributes(),
            )
            inputs = {dnnl.DST: library.layout(y), dnnl.DIFF_DST: library.layout(dy)}
            return Operation(library, description, inputs, {dnnl.DIFF_SRC: library.layout(dx)})

        key = ("softmax backward", y.shape, y.strides, dy.strides, dx.strides, axis)
        self.operation(key, build)((address(y), address(dy)), (address(dx),))

    def _describe_softmax(self, x: Array, y: Array, axis: int) -> dnnl.Description:
        library = self.library
        kind = c_int(dnnl.FORWARD_TRAINING)
        layouts = library.layout(x), library.layout(y)
        return library.describe(
            "softmax_forward", library.engine, kind, c_int(SOFTMAX), *layouts, c_int(axis), library.attributes()
        )


def _is_fast(x: Array, size: int, beta: float) -> bool:
    """Whether oneDNN has more than its reference code for it. That code errs (version 3.2) with a part of a vector."""
    return x.size > 0 and beta == 0.75 and x.shape[1] % VECTOR == 0 and size <= VECTOR


def _lrn_numbers(size: int, alpha: float, beta: float, k: float) -> tuple[Any, ...]:
    return c_int64(size), c_float(alpha), c_float(beta), c_float(k)
