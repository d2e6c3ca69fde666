"""How many threads a call of oneDNN takes: all that fcaffe may use, or one for what is too small to share out.

Two threads that wait for each other at the end of each operation lose some microseconds to it, and a thousand times as
much where something else runs on one of their cores, or where one of them has gone to sleep meanwhile. What one thread
does in that time is not shared out. That goes by the work alone, never by a clock, so it is the same in every run; and
only for operations whose bits are the same with any number of threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe.threads import wanted_threads

# What a core of 2.5 GHz with AVX-512 does in some 15 microseconds, and of products, of which nets have the most, in 40.
SMALL_BYTES = 1 << 19  # of all that is read and written
SMALL_PRODUCTS = 1_700_000  # multiply-adds
SMALL_FACTORS = 1 << 21  # bytes of all that products read and write


class Threads:
    """The threads of the OpenMP that this library of oneDNN uses, as the calling thread has set them."""

    def __init__(self, path: str) -> None:
        functions = ctypes.PyDLL(path)  # which keeps Python's lock: giving it away takes longer than these calls
        self.for_one = False  # primitives that are made now are for one thread
        self._get: Callable[[], int] | None = None
        with contextlib.suppress(AttributeError):  # a oneDNN of another threading
            self._get, self._put = functions.omp_get_max_threads, functions.omp_set_num_threads
        # On the command line OpenMP itself was told how many. In a program that uses fcaffe as a library it may serve
        # others as well, so it is told for the time of each call, and only if it has not been told by the user.
        self._most: int | None = None
        if self._get is not None and not os.environ.get("OMP_NUM_THREADS") and self._get() > wanted_threads():
            self._most = wanted_threads()

    @property
    def are_limited(self) -> bool:
        """Whether OpenMP would take more than fcaffe may use, so that each call must be made `within` the limit."""
        return self._most is not None

    def within(self) -> contextlib.AbstractContextManager[None]:
        """In its body there are no more than fcaffe may use."""
        return contextlib.nullcontext() if self._most is None else self._set(self._most)

    @contextlib.contextmanager
    def one(self, wanted: bool = True) -> Iterator[None]:
        """In its body there is one, for what is made as well as for what is run; not so if it is not wanted."""
        if not wanted or self._get is None:
            yield
            return
        before, self.for_one = self.for_one, True
        try:
            with self._set(1):
                yield
        finally:
            self.for_one = before

    def run_with_one(self, run: Callable[..., int], *arguments: Any) -> int:
        """run(*arguments) with one thread; without a context manager, which takes as long as a small operation."""
        before = 1 if self._get is None else self._get()
        if before == 1:
            return run(*arguments)
        try:
            self._put(1)
            return run(*arguments)
        finally:
            self._put(before)

    @contextlib.contextmanager
    def _set(self, most: int) -> Iterator[None]:
        assert self._get is not None
        before = self._get()
        try:
            self._put(min(before, most))
            yield
        finally:
            self._put(before)


def is_small(arrays: Sequence[np.ndarray], multiply_adds: int = 0) -> bool:
    """Whether an operation on these arrays, which makes so many multiply-adds if it is a product, is done by one thread
    before others have heard of it."""
    size = sum(array.nbytes for array in arrays)
    if multiply_adds:
        return multiply_adds <= SMALL_PRODUCTS and size <= SMALL_FACTORS
    return size <= SMALL_BYTES
