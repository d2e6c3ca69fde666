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
from fcaffe.engines.onednn.dnnl import AVX512_BF16, BF16
from fcaffe.engines.onednn.engine import OneDnnEngine
from fcaffe.engines.onednn.library import BFLOAT16
from fcaffe.errors import UsageError


def on_copies(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator on float32 copies of its bfloat16 arguments. All copies are copied back."""

    @functools.wraps(operator)
    def with_copies(self: Any, *arguments: Any, **settings: Any) -> Any:
        copies = [self.widened(argument) for argument in arguments]
        result = operator(self, *copies, **settings)
        for argument, copy in zip(arguments, copies, strict=True):  # outputs last, which may be the memory of an input
            if _is_narrow(argument):
                self.copy(copy, argument)
        return result

    return with_copies


def _is_narrow(thing: Any) -> bool:
    return isinstance(thing, np.ndarray) and thing.dtype == BFLOAT16


class PlainOperators(NumpyEngine):
    """NumPy's engine for blobs of both types: the operators below work on copies, and all others call these."""

    def widened(self, thing: Any) -> Any:
        """A float32 copy of an array of BFLOAT16, or of those in a list; another value as it is."""
        if isinstance(thing, list):
            return [self.widened(each) for each in thing]
        return self.as_float32(thing) if _is_narrow(thing) else thing

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
        copies = [np.empty_like(array, dtype=np.float32) if _is_narrow(array) else array for array in outputs]
        yield [*map(self.widened, inputs), *copies]
        for array, copy in zip(outputs, copies, strict=True):
            if copy is not array:
                self.copy(copy, array)

    def to_numpy(self, array: Array) -> np.ndarray:
        return np.asarray(self.widened(array))
