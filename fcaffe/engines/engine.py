"""Engine: an array module and the operators that are worth a fast implementation.

`Engine` writes every operator in plain array code that NumPy and CuPy run alike; that is the reference. A fast engine
overrides single operators. Arrays come in as N x C x spatial axes with any strides; results are written in place into
the arrays that the caller hands over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy

from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.inner_product import PlainInnerProduct
from fcaffe.engines.normalization import PlainNormalization
from fcaffe.engines.pooling import PlainPooling
from fcaffe.engines.update import PlainUpdate
from fcaffe.threads import wanted_threads


class Engine(PlainConvolution, PlainPooling, PlainNormalization, PlainInnerProduct, PlainElementwise, PlainUpdate):
    """Plain operators over the array module `xp`."""

    name = "plain"

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    @contextlib.contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """In its body no weights change, so what has been made of them may be used again."""
        yield

    def for_each(self, work: Callable[..., None], items: Sequence[tuple[Any, ...]]) -> None:
        """work(*item) for each item; in any order, or several at the same time."""
        for item in items:
            work(*item)

    def from_numpy(self, array: numpy.ndarray) -> Any:
        """The array where this engine computes."""
        return self.xp.asarray(array)

    def to_numpy(self, array: Any) -> numpy.ndarray:
        """The array in host memory."""
        return numpy.asarray(array)


MANY = 32  # items, or threads have more to do with one another than with them


class NumpyEngine(Engine):
    """The CPU engine that is always there: NumPy and its BLAS."""

    name = "NumPy"

    def __init__(self) -> None:
        super().__init__(numpy)
        self._threads = wanted_threads()
        self._pool: ThreadPoolExecutor | None = None

    def for_each(self, work: Callable[..., None], items: Sequence[tuple[Any, ...]]) -> None:
        """On all cores, each with every so many items: NumPy lets others run while it computes."""
        if self._threads == 1 or len(items) < MANY:
            super().for_each(work, items)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "engine")

        def some(first: int) -> None:
            with numpy.errstate(all="ignore"):  # which is each thread's own
                for item in items[first :: self._threads]:
                    work(*item)

        list(self._pool.map(some, range(self._threads)))
