"""Blobs as user code sees them: NumPy arrays in C order that can be written, wherever the blobs lie."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.net.blob import Blob, Storage


def host_views(engine: Engine) -> HostViews:
    """Those of the blobs of this engine; the same ones each time."""
    if engine.xp is np:
        return HostViews()
    found = _copies.get(id(engine))
    if found is None:
        found = _copies[id(engine)] = HostCopies(weakref.proxy(engine))
        weakref.finalize(engine, _copies.pop, id(engine), None)
    return found


class HostViews:
    """Of blobs in host memory: their own memory. It goes over to C order for good, for in channels-last memory
    `b.data.reshape(n, -1)[:] = x` would write a copy."""

    def prepare(self, blobs: Iterable[Blob]) -> None:
        """User code will see these."""
        for blob in blobs:
            blob.make_contiguous()

    def data(self, blob: Blob) -> np.ndarray:
        self.prepare([blob])
        return blob.data

    def diff(self, blob: Blob) -> np.ndarray:
        self.prepare([blob])
        return blob.diff

    def push(self) -> None:
        """Before the engine works: from now on what user code has written counts."""


class HostCopies(HostViews):
    """Of blobs on a device: copies, made when user code asks for them and written back by `push`.

    As in Caffe an array that was asked for before the last pass is out of date: ask for it anew to read or write.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._copies: weakref.WeakKeyDictionary[Storage, HostCopy] = weakref.WeakKeyDictionary()
        self._lent: list[tuple[Storage, HostCopy]] = []  # may have been written

    def prepare(self, blobs: Iterable[Blob]) -> None:
        pass

    def data(self, blob: Blob) -> np.ndarray:
        return self._lend(blob._data, blob.shape)

    def diff(self, blob: Blob) -> np.ndarray:
        return self._lend(blob._diff, blob.shape)

    def push(self) -> None:
        lent, self._lent = self._lent, []
        for storage, copy in lent:
            copy.lent = False
            storage.view(copy.shape)[...] = self._engine.from_numpy(copy.array)
        if any(storage.has_moved for storage, _ in lent):
            self._engine.refresh_parameters()

    def _lend(self, storage: Storage, shape: tuple[int, ...]) -> np.ndarray:
        copy = self._copies.get(storage)
        if copy is None:
            copy = self._copies[storage] = HostCopy(storage.size)
        if copy.lent and copy.shape != shape:  # another blob, of another shape, with the same memory
            self.push()
        if not copy.lent:
            copy.shape, copy.lent = shape, True
            copy.array[...] = self._engine.to_numpy(storage.view(shape))
            self._lent.append((storage, copy))
        return copy.array


class HostCopy:
    """float32 memory for the values of a storage, seen in one shape at a time."""

    def __init__(self, size: int) -> None:
        self._flat: Any = np.empty(size, np.float32)
        self.shape: tuple[int, ...] = ()
        self.lent = False

    @property
    def array(self) -> np.ndarray:
        return self._flat[: math.prod(self.shape)].reshape(self.shape)


_copies: dict[int, HostCopies] = {}  # by the engine's id
