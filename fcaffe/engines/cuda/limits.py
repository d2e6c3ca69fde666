"""The limits of the GPU engine, by operation: those of cuDNN, of cuBLAS as it is called here, and of our kernels."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.engines.limits import Limit
from fcaffe.engines.memory import Array


def _are_matrices(arrays: Sequence[Array]) -> bool:
    """Whether all are matrices in C order."""
    return all(array.ndim == 2 and array.flags.c_contiguous for array in arrays)


LIMITS = {
    "convolution": Limit(3, 5),  # one to three spatial axes; a plan may be missing still
    "matmul": Limit(2, 2, _are_matrices),
    "pooling": Limit(4, 4),
}
