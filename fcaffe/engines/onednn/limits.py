"""The limits of oneDNN, by operation. `Operations.operation` checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe.engines.channels import is_channels_last
from fcaffe.engines.limits import Limit
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn.dnnl import MAX_AXES
from fcaffe.engines.onednn.library import BFLOAT16, VECTOR
from fcaffe.engines.windows import Windows


def _have_layouts(arrays: Sequence[Array], *settings: Any) -> bool:
    """Whether oneDNN can describe the arrays: no axis overlaps the next outer one in memory."""
    return all(array.dtype in (np.float32, BFLOAT16, np.uint8) and _has_layout(array) for array in arrays)


def _have_one_layout(arrays: Sequence[Array], *settings: Any) -> bool:
    return all(array.dtype == np.float32 and array.strides == arrays[0].strides for array in arrays)


def _has_layout(x: Array) -> bool:
    reached = 0
    for stride, count in sorted(zip(x.strides, x.shape, strict=True)):
        if count > 1 and stride < reached:
            return False
        reached = max(reached, stride * count)
    return True


def _are_rows_of_channels(arrays: Sequence[Array], *settings: Any) -> bool:
    """Whether a dense array has more than one value for each channel."""
    x = arrays[0]
    return bool(x.size > x.shape[1] and (x.flags.c_contiguous or is_channels_last(x)))


def _has_fast_lrn(arrays: Sequence[Array], size: int, beta: float, training: bool, avx512: bool, *others: Any) -> bool:
    """Whether oneDNN has more than its reference code for this LRN, and in training for its gradient.

    The reference code of version 3.2 errs for channels that fill a part of a vector, and its backward pass ends the
    process for one channel. That of bfloat16 errs for windows of more than 5 channels.
    """
    x = arrays[0]
    most = VECTOR if x.dtype == np.float32 else 5
    known = 1 < size <= most if avx512 else size == 5 and not training
    return known and beta == 0.75 and x.shape[1] % VECTOR == 0


def _has_fast_softmax(arrays: Sequence[Array], avx2: bool, avx512: bool) -> bool:
    """Whether oneDNN has exact code, and for the gradient, which has a third array, more than its reference code."""
    return all(array.dtype == np.float32 for array in arrays) and (avx512 or (avx2 and len(arrays) == 2))


def _have_values(arrays: Sequence[Array], windows: Windows, avx: bool, *others: Any) -> bool:
    """Whether each window has a value. Without AVX the library's code ends the process for some addresses."""
    x, y = arrays
    axes = zip(x.shape[2:], y.shape[2:], windows.stride, windows.pad, strict=True)
    return avx and all((o - 1) * s - p < n for n, o, s, p in axes)


LIMITS = {
    "binary": Limit(1, MAX_AXES, _have_layouts),
    "channels": Limit(2, 32, _are_rows_of_channels),  # a binary operation on rows of channels
    "convolution": Limit(3, 5),
    "function": Limit(1, MAX_AXES, _have_one_layout),
    "lrn": Limit(4, 4, _has_fast_lrn),
    "matmul": Limit(2, 2),
    "pooling": Limit(3, 5, _have_values),
    "reorder": Limit(1, MAX_AXES, _have_layouts),
    "softmax": Limit(2, 2, _has_fast_softmax),
}
