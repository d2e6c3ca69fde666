"""The engine for blobs of bfloat16: oneDNN's primitives read and write them, plain array code gets float32 copies."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe.engines.channels import narrowed, widened
from fcaffe.engines.memory import Array
from fcaffe.engines.numpy_engine import NumpyEngine
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.dnnl import AVX512_BF16, BF16
from fcaffe.engines.onednn.engine import OneDnnEngine
from fcaffe.engines.onednn.library import BFLOAT16
from fcaffe.errors import UsageError


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


def on_copies(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator on float32 copies of its bfloat16 arguments. All copies are copied back."""

    @functools.wraps(operator)
    def with_copies(self: Any, *arguments: Any, **settings: Any) -> Any:
        copies = Copies(self.copy)
        result = operator(self, *map(copies.of, arguments), **settings)
        for argument in arguments:  # outputs follow inputs, which copies back do not change
            copies.round_back(argument)
        return result

    return with_copies


def _is_narrow(thing: Any) -> bool:
    return isinstance(thing, np.ndarray) and thing.dtype == BFLOAT16


class PlainOperators(NumpyEngine):
    """NumPy's engine for blobs of both types: the operators below work on copies, and all others call these."""

    def copy(self, x: Array, y: Array) -> None:
        y[...] = narrowed(x) if _is_narrow(y) and not _is_narrow(x) else x if _is_narrow(y) else widened(x)


for operator in (  # on activations or their gradients
    *(NumpyEngine.add_bias, NumpyEngine.multiply, NumpyEngine.weighted_sum),
    *(NumpyEngine.average_pool_forward, NumpyEngine.average_pool_backward),
    *(NumpyEngine.batch_norm_apply, NumpyEngine.batch_norm_train_backward),
    *(NumpyEngine.convolution_forward, NumpyEngine.convolution_backward_data),
    *(NumpyEngine.convolution_backward_weights, NumpyEngine.lrn_forward, NumpyEngine.lrn_backward),
    *(NumpyEngine.inner_product_forward, NumpyEngine.inner_product_backward_data),
    *(NumpyEngine.inner_product_backward_weights, NumpyEngine.max_pool_with_indices, NumpyEngine.index_backward),
    *(NumpyEngine.max_pool_forward, NumpyEngine.max_pool_backward),
    *(NumpyEngine.relu_forward, NumpyEngine.relu_backward),
    *(NumpyEngine.scale_channels, NumpyEngine.scale_channels_backward),
    *(NumpyEngine.softmax_forward, NumpyEngine.softmax_backward),
):
    setattr(PlainOperators, operator.__name__, on_copies(operator))


class Bfloat16Engine(OneDnnEngine, PlainOperators):
    """Blobs between layers that can do with it, and the factors of products, are bfloat16; all sums are float32.

    Raises UsageError where the processor cannot.
    """

    math = BF16
    half_dtype = BFLOAT16
    half_arithmetic = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if not self.library.has(AVX512_BF16):
            raise UsageError("--math bf16 needs a processor with AVX-512 BF16 or AMX, and this one has neither")
        self.name += " (bfloat16)"

    @contextlib.contextmanager
    def in_float32(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Iterator[list[Array]]:
        copies = Copies(self.copy)
        yield [*map(copies.of, inputs), *map(copies.to_write, outputs)]
        for array in outputs:
            copies.round_back(array)

    def to_numpy(self, array: Array) -> np.ndarray:
        return np.asarray(Copies(self.copy).of(array))
