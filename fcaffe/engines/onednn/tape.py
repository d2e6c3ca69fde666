"""Tape: calls of primitives with their arguments as they were, to be made again on the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import address
from fcaffe.engines.onednn.calls import Calls, OneDnnError

Call = tuple[Callable[..., int | None], tuple[Any, ...]]  # of a function that returns a status, or nothing


class Tape:
    """Holds what the calls need, but for the arrays of others: who plays it knows that those are still there."""

    def __init__(self, library: Calls) -> None:
        self._library = library
        self._stretches: list[tuple[bool, list[Call]]] = []  # of calls that one thread makes, or all
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
        self._held += [primitive, own]
        call = primitive.handle, library.stream, len(own), ctypes.addressof(own)
        self.add_call("execute", call, primitive.by_one, addresses)

    def add_call(self, name: str, arguments: tuple[Any, ...], by_one: bool, places: Sequence[int]) -> None:
        """A call of one of the library's `computing` functions, which works on these addresses and returns a status."""
        self._addresses.update(places)
        self._held += self._library.temporaries()
        self._add(by_one, (self._library.computing[name], arguments))

    def add_operator(self, operator: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """A call of what is no function of the library; the arrays among its arguments last as long as the tape."""
        self._add(False, (operator, arguments))

    def _add(self, by_one: bool, call: Call) -> None:
        if not self._stretches or self._stretches[-1][0] != by_one:
            self._stretches.append((by_one, []))
        self._stretches[-1][1].append(call)

    def works_on(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether all arguments lie in these arrays."""
        return lie_in(self._addresses, arrays)

    @property
    def is_empty(self) -> bool:
        return not self._stretches

    def hold(self, arrays: Sequence[np.ndarray]) -> None:
        """Let these last as long as the tape."""
        self._held += arrays

    def append(self, other: Tape) -> None:
        """Go on with what another tape plays."""
        self._held.append(other)
        for by_one, calls in other._stretches:
            for call in calls:
                self._add(by_one, call)

    def __call__(self) -> None:
        """Play it."""
        others = self._library.in_their_place
        for by_one, calls in self._stretches:
            if others:
                calls = [(others.get(id(run), run), arguments) for run, arguments in calls]
            status = self._library.threads.run_with_one(_make, calls) if by_one else _make(calls)
            if status:
                raise OneDnnError(f"oneDNN {self._library.version}: a recorded call failed (status {status})")


def lie_in(addresses: Iterable[int], arrays: Sequence[np.ndarray]) -> bool:
    """Whether all of these addresses are within one of the arrays' memory each."""
    places = [(address(array), array.nbytes) for array in arrays]
    return all(any(0 <= place - first < size for first, size in places) for place in addresses)


def _make(calls: list[Call]) -> int:
    """All of these calls, until one fails; returns its status, or 0."""
    for run, arguments in calls:
        if status := run(*arguments):
            return status
    return 0
