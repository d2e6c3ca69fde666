"""What is remembered of a storage whose values user code has seen: when, and in which arrays."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from fcaffe.engines.memory import foreign
from fcaffe.net.storage import Storage


def nothing() -> None:
    """What a reference to something that is gone gives."""


class Shown:
    """`last_read` is the number of the last read. `window` refers to the array of the storage's own memory, at
    `address`, that user code has or had. `copy` is there while user code has a copy in C order, or may have written
    one.
    """

    __slots__ = ("address", "copy", "is_exposed", "last_read", "storage", "window")

    def __init__(self, storage: Storage) -> None:
        self.storage = weakref.ref(storage)
        self.last_read = 0
        self.window: Any = nothing
        self.address = 0
        self.is_exposed = False  # one of those whose window somebody may still have
        self.copy: HostCopy | None = None

    @property
    def is_held(self) -> bool:
        """Whether user code has an array."""
        return self.window() is not None or (self.copy is not None and self.copy.held() is not None)


class HostCopy:
    """float32 memory in C order for the values of a storage, seen in the shape of one of its blobs at a time.

    It belongs to user code: `values` is set only while there may be something in it that the blob has not got yet.
    If `lasting`, the memory stays when user code has dropped its array, and is lent to it again the next time.
    """

    def __init__(self, lasting: bool) -> None:
        self.values: np.ndarray | None = None
        self.held: Any = nothing
        self.shape: tuple[int, ...] = ()
        self.blob: Any = nothing
        self.lasting = lasting
        self.is_same = False  # what is in the memory is what the blob has
        self.is_listed = False  # one of those that may be held, or written
        self._memory: Any = None

    @property
    def array(self) -> np.ndarray:
        assert self.values is not None
        return self.values[: math.prod(self.shape)].reshape(self.shape)

    def lend(self, size: int, dtype: Any) -> np.ndarray:
        """An array for this many values, for as long as user code holds what is made of it."""
        if self._memory is None:
            values = np.empty(size, dtype)
            if self.lasting:
                self._memory = foreign(values)
        if self._memory is not None:
            values = np.ndarray((size,), dtype, self._memory)
        self.held = weakref.ref(values)
        return values

    def is_elsewhere(self) -> bool:
        """Whether user code has an array of the `values`, besides our own reference; of one that lasts and has some."""
        assert self.values is not None and self._memory is not None
        size, dtype = self.values.size, self.values.dtype
        self.values = None
        held = self.held()
        self.values = self.lend(size, dtype) if held is None else held
        return held is not None
