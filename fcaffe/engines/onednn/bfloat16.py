"""The engine for blobs of bfloat16: oneDNN's primitives read and write them, plain array code gets float32 copies."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_float, c_int, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.numpy_engine import NumpyEngine
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.dnnl import BF16, DST, F32, MULTIPLE_SRC
from fcaffe.engines.onednn.engine import OneDnnEngine
from fcaffe.engines.onednn.library import BFLOAT16
from fcaffe.engines.onednn.operation import SMALL, Operation
from fcaffe.engines.onednn.pieces import is_channels_last
from fcaffe.engines.onednn.primitives import Layout
from fcaffe.errors import UsageError

TOGETHER = 8  # arrays of bfloat16 whose sum oneDNN has fast code for

Array = Any


class Copies:
    """float32 copies of arrays of BFLOAT16, one for each address and layout; other values are returned as they are."""

    def __init__(self, copy: Callable[[Array, Array], None]) -> None:
        self._copy = copy
        self._made: dict[tuple[int, tuple[int, ...]], Array] = {}

    def of(self, thing: Any) -> Any:
        """The copy of an array that is read, or a list of them."""
        if isinstance(thing, list):
            return [self.of(each) for each in thing]
        if not _is_narrow(thing):
            return thing
        is_new = (address(thing), thing.strides) not in self._made
        copy = self.to_write(thing)
        if is_new:
            self._copy(thing, copy)
        return copy

    def to_write(self, thing: Any) -> Any:
        """The copy of an array that is overwritten: `round_back` brings what it holds then into the array."""
        if not _is_narrow(thing):
            return thing
        return self._made.setdefault((address(thing), thing.strides), np.empty_like(thing, dtype=np.float32))

    def round_back(self, thing: Any) -> None:
        if _is_narrow(thing):
            self._copy(self.of(thing), thing)


def on_copies(operator: Callable[..., Any], outputs: Sequence[int]) -> Callable[..., Any]:
    """The operator on float32 copies of its bfloat16 arguments. `outputs` are the positions of those that it writes."""

    @functools.wraps(operator)
    def with_copies(self: Any, *arguments: Any, **settings: Any) -> Any:
        copies = Copies(self.copy)
        result = operator(self, *map(copies.of, arguments), **settings)
        for index in outputs:
            copies.round_back(arguments[index])
        return result

    return with_copies


def _is_narrow(thing: Any) -> bool:
    return isinstance(thing, np.ndarray) and thing.dtype == BFLOAT16


class PlainOperators(NumpyEngine):
    """NumPy's engine for blobs of both types. Operators that are not in OUTPUTS call others."""


# For each operator in array code: the positions of the arguments of activations or their gradients that it writes.
OUTPUTS = {
    "add_bias": [0],
    "add_relu": [2],
    "average_pool_backward": [1],
    "average_pool_forward": [1],
    "batch_norm_apply": [1],
    "batch_norm_moments": [],
    "batch_norm_train_backward": [2],
    "convolution_backward_data": [2],
    "convolution_backward_weights": [],
    "convolution_forward": [3],
    "index_backward": [2],
    "lrn_backward": [4],
    "lrn_forward": [1],
    "max_pool_with_indices": [1],
    "multiply": [2],
    "relu_backward": [2],
    "relu_forward": [1],
    "relu_of_maxima": [0],
    "scale_channels": [1],
    "scale_channels_backward": [2],
    "softmax_backward": [2],
    "softmax_forward": [1],
    "weighted_sum": [2],
}
for name, written in OUTPUTS.items():
    setattr(PlainOperators, name, on_copies(getattr(NumpyEngine, name), written))


class Bfloat16Engine(OneDnnEngine, PlainOperators):
    """Blobs between layers that can do with it, and the factors of products, are bfloat16; all sums are float32.

    Raises UsageError where the processor cannot.
    """

    math = BF16
    half_dtype = BFLOAT16
    half_arithmetic = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if not self.library.has_bf16():
            raise UsageError("--math bf16 needs a processor with AVX-512 BF16 or AMX, and this one has neither")
        self.name += " (bfloat16)"

    @contextlib.contextmanager
    def in_float32(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Iterator[list[Array]]:
        copies = Copies(self.copy)
        yield [*map(copies.of, inputs), *map(copies.to_write, outputs)]
        for array in outputs:
            copies.round_back(array)

    def channel_sums(self, x: Array) -> Array:
        """oneDNN adds up eight distant rows at a time, in float32; the base class adds up the results."""
        count = x.size // x.shape[1] // TOGETHER * x.shape[1]  # values of the first of eight stretches
        if x.dtype != BFLOAT16 or x.size < SMALL or not count or not is_channels_last(x):
            return super().channel_sums(Copies(self.copy).of(x))

        def build() -> Operation:
            library, one, other = self.library, *(Layout(self.library, (count,), kind, (1,)) for kind in (BF16, F32))
            description = library.describe(
                "sum",
                library.engine,
                other,
                c_int(TOGETHER),
                (c_float * TOGETHER)(*[1.0] * TOGETHER),
                (c_void_p * TOGETHER)(*[one.handle.value] * TOGETHER),
                library.attributes(),
            )
            return Operation(library, description, {MULTIPLE_SRC + i: one for i in range(TOGETHER)}, {DST: other})

        sums, first = np.empty(count, np.float32), address(x)
        ins = tuple(first + x.itemsize * count * index for index in range(TOGETHER))
        self.operation(("channel sums", count), build)(ins, (address(sums),))
        rest = channels_last(x).reshape(-1)[TOGETHER * count :]
        total = super().channel_sums(_as_rows(sums, x.shape[1]))
        if not rest.size:
            return total
        return total + super().channel_sums(Copies(self.copy).of(_as_rows(rest, x.shape[1])))

    def to_numpy(self, array: Array) -> np.ndarray:
        return np.asarray(Copies(self.copy).of(array))


def _as_rows(flat: Array, channels: int) -> Array:
    """As (1, C, 1, rows)."""
    return flat.reshape(1, 1, -1, channels).transpose(0, 3, 1, 2)
