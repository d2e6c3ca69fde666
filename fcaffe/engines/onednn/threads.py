"""Threads of oneDNN's calls: all that fcaffe may use, or one for small operations.

Threads that wait for each other at the end of an operation lose some microseconds. They lose a thousand times as much
if something else runs on one of their cores. Operations that one thread finishes in that time are not split. The
decision depends on the size of the work and never on a clock, so it is the same in every run. Only operations whose
bits do not depend on the number of threads are run by one. (On processors without AVX-512 the last bits of a few
products do.)
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe.threads import wanted_threads

# The work of a core of 2.5 GHz with AVX-512 in 15 microseconds; of products, in 40.
SMALL_BYTES = 1 << 19  # read and written
SMALL_PRODUCTS = 1_700_000  # multiply-adds
PAUSE_HARD = 2  # omp_pause_hard
SMALL_FACTORS = 1 << 21  # bytes read and written by products


class Threads:
    """The threads of the OpenMP that this library of oneDNN uses, as the calling thread has set them."""

    def __init__(self, path: str) -> None:
        _end_before_forks(path)
        functions = ctypes.PyDLL(path)  # PyDLL keeps Python's lock: releasing it takes longer than these calls
        self.for_one = False  # compile primitives for one thread
        self._get: Callable[[], int] | None = None
        with contextlib.suppress(AttributeError):  # a oneDNN of another threading
            self._get, self._put = functions.omp_get_max_threads, functions.omp_set_num_threads
        # The command line sets OpenMP's number of threads for the process. In a program that uses fcaffe as a library
        # others may use OpenMP too, so it is limited during each call, unless the user has set OMP_NUM_THREADS.
        self._most: int | None = None
        if self._get is not None and not os.environ.get("OMP_NUM_THREADS") and self._get() > wanted_threads():
            self._most = wanted_threads()

    @property
    def are_limited(self) -> bool:
        """Whether OpenMP would use more threads than fcaffe may, so that each call has to be `within` the limit."""
        return self._most is not None

    def within(self) -> contextlib.AbstractContextManager[None]:
        """The body uses no more threads than fcaffe may."""
        return contextlib.nullcontext() if self._most is None else self._set(self._most)

    @contextlib.contextmanager
    def one(self, wanted: bool = True) -> Iterator[None]:
        """If `wanted`, primitives are compiled for one thread and run by one thread in the body. After it, OpenMP's
        number of threads is as before."""
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
        """Call run(*arguments) with one thread. A context manager would take as long as a small operation."""
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


@functools.cache
def _end_before_forks(path: str) -> None:
    """Have OpenMP end its threads before each fork, and start others when it needs them. The forked process has no
    threads, and GNU OpenMP would wait for them for ever."""
    with contextlib.suppress(AttributeError):  # GCC 8
        end = ctypes.PyDLL(path).omp_pause_resource_all
        os.register_at_fork(before=functools.partial(end, PAUSE_HARD))


def is_small(arrays: Sequence[np.ndarray], multiply_adds: int = 0) -> bool:
    """Whether one thread should run an operation on these arrays. `multiply_adds`: of a product, else 0."""
    size = sum(array.nbytes for array in arrays)
    if multiply_adds:
        return multiply_adds <= SMALL_PRODUCTS and size <= SMALL_FACTORS
    return size <= SMALL_BYTES
