"""The engine that computes with NumPy on all cores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy

from fcaffe.engines.channels import channel_moments, sum_channels
from fcaffe.engines.convolution import Made
from fcaffe.engines.engine import MANY, Engine, Kept
from fcaffe.engines.memory import address
from fcaffe.threads import wanted_threads


class NumpyEngine(Engine):
    """The CPU engine that is always there: NumPy and its BLAS."""

    name = "NumPy"
    folds_weights = True

    def __init__(self) -> None:
        super().__init__(numpy)
        self._kept: Kept | None = None  # while weights are fixed
        self._changing: Collection[int] = ()
        self._threads = wanted_threads()
        self._pool: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def fixed_weights(self, made: Kept | None = None, changing: Collection[int] = ()) -> Iterator[None]:
        if self._kept is not None and made is None:
            yield
            return
        before = self._kept, self._changing, self.fixed
        self._kept, self._changing = {} if made is None else made, changing
        if made is None:
            self.fixed = object()
        else:
            self.fixed = None if changing else made
        try:
            yield
        finally:
            self._kept, self._changing, self.fixed = before

    @contextlib.contextmanager
    def other_weights(self) -> Iterator[None]:
        before = self._kept, self.fixed
        self._kept = self.fixed = None
        try:
            yield
        finally:
            self._kept, self.fixed = before

    def of_weights(self, sources: Sequence[Any], what: Hashable, make: Callable[[], Made]) -> Made | None:
        kept, changing = self._kept, self._changing
        if kept is None:
            return None
        addresses = tuple([address(array) for array in sources])
        if changing and any(each in changing for each in addresses):
            return None
        found: Made | None = kept.get((addresses, what))
        if found is None:
            found = kept[addresses, what] = make()
        return found

    def channel_sums(self, x: Any) -> Any:
        return sum_channels(x)

    def batch_norm_moments(self, x: Any, mean: Any, variance: Any) -> None:
        mean[...], variance[...] = channel_moments(x, self.for_each)

    def for_each(self, work: Callable[..., None], items: Sequence[tuple[Any, ...]], fewest: int = MANY) -> None:
        """On all cores, each with every so many items: NumPy lets others run while it computes."""
        if self._threads == 1 or len(items) < fewest:
            super().for_each(work, items)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "engine")

        def some(first: int) -> None:
            with numpy.errstate(all="ignore"):  # which is each thread's own
                for item in items[first :: self._threads]:
                    work(*item)

        list(self._pool.map(some, range(self._threads)))
