"""Tape: recorded calls of oneDNN with their arguments, which are repeated on the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import address
from fcaffe.engines.onednn.calls import Calls, OneDnnError

Call = tuple[Callable[..., int], tuple[Any, ...]]  # of a function that returns a status


class Tape:
    """Recorded calls. It keeps their memory objects alive, but not the arrays that the caller has passed."""

    def __init__(self, library: Calls) -> None:
        self._library = library
        self._stretches: list[tuple[bool, list[Call]]] = []  # whether one thread runs them, and the calls
        self._held: list[Any] = []
        self._addresses: set[int] = set()

    def add(self, primitive: Any, arguments: Any, addresses: Sequence[int]) -> None:
        """Record a call of this Primitive with these arguments, an array of dnnl_exec_arg_t, at these addresses."""
        library, own = self._library, type(arguments)()
        for target, source, where in zip(own, arguments, addresses, strict=True):
            layout = c_void_p()
            library.call("memory_get_memory_desc", c_void_p(source.memory), ctypes.byref(layout))
            memory = library.create("memory_create", layout, library.engine, c_void_p(where))
            library.destroy_with(self, "memory", memory)
            target.arg, target.memory = source.arg, memory.value
        self._held += [primitive, own]
        call = primitive.handle, library.stream, len(own), ctypes.addressof(own)
        self.add_call("execute", call, primitive.by_one, addresses)

    def add_call(self, name: str, arguments: tuple[Any, ...], by_one: bool, addresses: Sequence[int]) -> None:
        """Record a call of one of the library's `computing` functions. Its operands are at these addresses."""
        self._addresses.update(addresses)
        self._held += self._library.temporaries()
        self._add(by_one, (getattr(self._library, name), arguments))

    def _add(self, by_one: bool, call: Call) -> None:
        if not self._stretches or self._stretches[-1][0] != by_one:
            self._stretches.append((by_one, []))
        self._stretches[-1][1].append(call)

    def works_on(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether all arguments lie in these arrays."""
        return lie_in(self._addresses, arrays)

    def hold(self, arrays: Sequence[np.ndarray]) -> None:
        """Keep these alive as long as the tape."""
        self._held += arrays

    def append(self, other: Tape) -> None:
        """Add the calls of another tape."""
        self._held.append(other)
        for by_one, calls in other._stretches:
            for call in calls:
                self._add(by_one, call)

    def __call__(self) -> None:
        """Repeat all calls. Raises OneDnnError if one fails."""
        for by_one, calls in self._stretches:
            status = self._library.threads.run_with_one(_run, calls) if by_one else _run(calls)
            if status:
                raise OneDnnError(f"oneDNN {self._library.version}: a recorded call failed (status {status})")


def lie_in(addresses: Iterable[int], arrays: Sequence[np.ndarray]) -> bool:
    """Whether each of these addresses lies in the memory of one of the arrays."""
    spans = [(address(array), array.nbytes) for array in arrays]
    return all(any(0 <= each - first < size for first, size in spans) for each in addresses)


def _run(calls: list[Call]) -> int:
    """Run these calls until one fails. Returns its status, or 0."""
    for run, arguments in calls:
        if status := run(*arguments):
            return status
    return 0
