"""Cached weights: what an engine derives from weights, such as reordered ones, serves more than one forward pass.

That is for scripts, which run a net forward many times with the same weights. Code that changes weights calls `change`
or `drop`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fcaffe.engines import Engine
from fcaffe.engines.weight_cache import WeightCache
from fcaffe.net.storage import Storage


class CachedWeights:
    """A weight cache for each net that runs forward on this engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._caches: weakref.WeakKeyDictionary[Any, tuple[list[tuple[int, ...]], WeightCache]]
        self._caches = weakref.WeakKeyDictionary()  # with the shapes of the net's blobs
        self._changes = 0  # under way

    @contextlib.contextmanager
    def same(self, net: Any, exposed: Callable[[], list[Storage]]) -> Iterator[None]:
        """Its body is a forward pass of this net. Derived weights are cached for the next pass, unless the storages of
        their sources are `exposed`."""
        if self._changes:
            yield
            return
        shapes = [blob.shape for blob in net.blobs]
        known = self._caches.get(net)
        if known is None or known[0] != shapes:  # a second pass with these shapes makes a cache worth its memory
            with self._engine.other_weights():
                yield
            self._caches[net] = shapes, WeightCache()
            return
        cache, written = known[1], set(exposed())
        if written:
            written &= {blob.data_storage for layer in net.layers for blob in layer.blobs}
        cache.changing = {storage.address for storage in written}
        with self._engine.fixed_weights(cache):
            yield

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Its body changes weights of a net, or their addresses; user code may do so amid a forward pass of another
        net, inside the body of `same`."""
        for _, cache in self._caches.values():
            cache.clear()
        self._caches.clear()
        self._changes += 1
        try:
            with self._engine.other_weights():
                yield
        finally:
            self._changes -= 1

    def drop(self, address: int) -> None:
        """The weights at this address may be written from now on."""
        for _, cache in self._caches.values():
            cache.drop(address)
