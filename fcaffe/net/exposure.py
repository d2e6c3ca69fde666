"""Exposure of a storage to user code: the arrays that user code may hold."""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any

import numpy as np

from fcaffe.net.storage import Storage

OWN = 2  # references to an array of which user code holds no view: the attribute's, and that of getrefcount's argument


def nothing() -> None:
    """A dead weak reference: returns None."""


class Exposure:
    """The arrays of one storage that user code may hold: a window, which is the storage's own memory, or a copy.

    Both are flat. The copy has the values of `blob` in C order, one of the blobs of this storage at a time. With
    `may_differ`, user code may have written values into it that the blob does not have yet. `is_fresh`: user code has
    asked for it since the engine last took values over. `reshaped` is the blob that user code reshaped last.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = weakref.ref(storage)
        self.window: np.ndarray | None = None
        self.address = 0  # of the window
        self.copy: np.ndarray | None = None
        self.may_differ = self.is_fresh = False
        self.shape: tuple[int, ...] = ()
        self.blob: Any = nothing
        self.reshaped: Any = nothing

    @property
    def window_is_held(self) -> bool:
        return sys.getrefcount(self.window) > OWN

    @property
    def copy_is_held(self) -> bool:
        return sys.getrefcount(self.copy) > OWN

    @property
    def array(self) -> np.ndarray:
        """The copy in the shape of its blob."""
        assert self.copy is not None
        return self.copy[: math.prod(self.shape)].reshape(self.shape)
