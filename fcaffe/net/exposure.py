"""Exposure of a storage to user code: when it was read last, and the arrays that user code may hold."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from fcaffe.engines.memory import foreign
from fcaffe.net.storage import Storage


def nothing() -> None:
    """A dead weak reference: returns None."""


class Exposure:
    """The arrays of one storage that user code may hold.

    `last_read` is the sequence number of the last read. `window` is a weak reference to the array of the storage's own
    memory, at `address`. `copy` is set while user code holds a copy in C order, or may have written one.
    """

    __slots__ = ("address", "copy", "is_exposed", "last_read", "storage", "window")

    def __init__(self, storage: Storage) -> None:
        self.storage = weakref.ref(storage)
        self.last_read = 0
        self.window: Any = nothing
        self.address = 0
        self.is_exposed = False  # listed in HostViews._exposed
        self.copy: HostCopy | None = None

    @property
    def is_held(self) -> bool:
        """Whether user code holds an array."""
        return self.window() is not None or (self.copy is not None and self.copy.held() is not None)


class HostCopy:
    """A copy of a storage in C order, with the shape of one of its blobs at a time.

    `values` is set only while user code may have written values that the blob does not have yet. The memory of a
    `lasting` copy is reused after user code has dropped its array.
    """

    def __init__(self, lasting: bool) -> None:
        self.values: np.ndarray | None = None
        self.held: Any = nothing
        self.shape: tuple[int, ...] = ()
        self.blob: Any = nothing
        self.lasting = lasting
        self.is_same = False  # the memory has the same values as the blob
        self.is_listed = False  # listed in HostViews._copied
        self._memory: Any = None

    @property
    def array(self) -> np.ndarray:
        assert self.values is not None
        return self.values[: math.prod(self.shape)].reshape(self.shape)

    def allocate(self, size: int, dtype: Any) -> np.ndarray:
        """An array for this many values. It lives as long as user code holds a view of it."""
        if self._memory is None:
            values = np.empty(size, dtype)
            if self.lasting:
                self._memory = foreign(values)
        if self._memory is not None:
            values = np.ndarray((size,), dtype, self._memory)
        self.held = weakref.ref(values)
        return values

    def is_held_by_user(self) -> bool:
        """Whether user code holds a view of `values`, which are set; the copy must be lasting."""
        assert self.values is not None and self._memory is not None
        size, dtype = self.values.size, self.values.dtype
        self.values = None
        held = self.held()
        self.values = self.allocate(size, dtype) if held is None else held
        return held is not None
