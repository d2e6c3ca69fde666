"""Tape: calls of primitives with their arguments as they were, to be made again on the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import address
from fcaffe.engines.onednn.calls import Calls, OneDnnError


class Tape:
    """Holds what the calls need, but for the arrays of others: who plays it knows that those are still there."""

    def __init__(self, library: Calls) -> None:
        self._library = library
        self._calls: list[tuple[Any, ...]] = []
        self._held: list[Any] = []
        self._addresses: set[int] = set()

    def add(self, primitive: Any, arguments: Any, addresses: Sequence[int]) -> None:
        """A call of this Primitive with these arguments, an array of dnnl_exec_arg_t, that lie at these addresses."""
        library, own = self._library, type(arguments)()
        for target, source, place in zip(own, arguments, addresses, strict=True):
            layout = c_void_p()
            library.call("memory_get_memory_desc", c_void_p(source.memory), ctypes.byref(layout))
            memory = library.create("memory_create", layout, library.engine, c_void_p(place))
            library.destroy_with(self, "memory", memory)
            target.arg, target.memory = source.arg, memory.value
        self._addresses.update(addresses)
        self._held += [primitive, own, *library.temporaries()]
        self._calls.append((primitive.handle, library.stream, len(own), ctypes.addressof(own)))

    def works_on(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether all arguments lie in these arrays."""
        places = [(address(array), array.nbytes) for array in arrays]
        return all(any(0 <= place - first < size for first, size in places) for place in self._addresses)

    def hold(self, arrays: Sequence[np.ndarray]) -> None:
        """Let these last as long as the tape."""
        self._held += arrays

    def play(self) -> None:
        for call in self._calls:
            status = self._library.execute(*call)
            if status:
                raise OneDnnError(f"oneDNN {self._library.version}: a recorded primitive failed (status {status})")
