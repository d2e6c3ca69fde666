"""The engine that computes with NumPy on all cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from fcaffe.engines.channels import channel_moments, row_sums, sum_channels
from fcaffe.engines.engine import Engine
from fcaffe.engines.formulas import Formula
from fcaffe.threads import renew_in_forks, shard_threads, wanted_threads

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MANY = 32  # small items; with fewer, the threads' overhead is larger than the gain
SMALLEST_BLOCK, LARGEST_BLOCK = 1 << 14, 1 << 17  # values of a formula that are computed at a time


class NumpyEngine(Engine):
    """The CPU engine that is always there: NumPy and its BLAS."""

    name = "NumPy"

    def __init__(self) -> None:
        super().__init__(numpy)
        self._arguments: tuple[str, ...] = ()  # of this constructor
        self._threads = max(wanted_threads(), shard_threads())
        self._pool: ThreadPoolExecutor | None = None
        renew_in_forks(self)

    def after_fork(self) -> None:
        self._pool = None

    def another(self) -> Engine:
        other = type(self)(*self._arguments)
        other._threads = 1
        return other

    def pointwise(self, formula: Formula, arrays: Mapping[str, Any], out: Any) -> None:
        """In blocks, so that intermediate values stay in the cache."""
        order = sorted(range(out.ndim), key=lambda axis: -abs(out.strides[axis]))
        target, *others = (array.transpose(order) for array in (out, *arrays.values()))
        if target.flags.c_contiguous and all(o.shape == target.shape and o.flags.c_contiguous for o in others):
            target, *others = (array.reshape(-1) for array in (target, *others))
        if target.size <= SMALLEST_BLOCK:
            super().pointwise(formula, dict(zip(arrays, others, strict=True)), target)
            return

        def compute(*index: Any) -> None:
            inside = [array[_repeated(index, array.shape)] for array in others]
            target[index] = formula.of_arrays(dict(zip(arrays, inside, strict=True)), numpy)

        values = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, target.size // MANY))
        self.for_each(compute, list(_blocks(target.shape, values)))

    def channel_sums(self, x: Any) -> Any:
        return sum_channels(x)

    def row_sums(self, a: Any, b: Any = None) -> Any:
        return row_sums(a, b)

    def batch_norm_moments(self, x: Any, mean: Any, variance: Any) -> None:
        mean[...], variance[...] = channel_moments(x, self.for_each)

    def for_each(self, work: Callable[..., None], items: Sequence[tuple[Any, ...]]) -> None:
        """On all cores, each with every so many items: NumPy lets others run while it computes."""
        if self._threads == 1 or len(items) < MANY:
            super().for_each(work, items)
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # slow to load

            self._pool = ThreadPoolExecutor(self._threads, "engine")

        def some(first: int) -> None:
            with numpy.errstate(all="ignore"):  # which is each thread's own
                for item in items[first :: self._threads]:
                    work(*item)

        list(self._pool.map(some, range(self._threads)))


def _blocks(shape: tuple[int, ...], values: int) -> Iterator[tuple[Any, ...]]:
    """Yields indices of consecutive blocks of an array in C order, with at most so many values where an axis allows."""
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= values)
    rows = values // math.prod(shape[axis + 1 :])
    for outer in numpy.ndindex(shape[:axis]):
        for start in range(0, shape[axis], rows):
            yield (*(slice(one, one + 1) for one in outer), slice(start, start + rows))


def _repeated(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The index for an array that is repeated along its axes of length 1."""
    return tuple(slice(None) if length == 1 else part for part, length in zip(index, shape, strict=False))
