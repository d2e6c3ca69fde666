"""Tape: recorded calls of oneDNN with their arguments, which are repeated on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fcaffe.engines.memory import address
from fcaffe.engines.onednn.calls import Calls, OneDnnError


class Tape:
    """Recorded calls. It keeps the library's temporary memory and the `held` arrays alive, but not the arrays of the
    caller."""

    def __init__(self, library: Calls) -> None:
        self._library = library
        self._stretches: list[tuple[bool, list[Callable[[], int]]]] = []  # whether one thread runs them, and the calls
        self._addresses: set[int] = set()
        self.held: list[np.ndarray] = []

    def add(self, call: Callable[[], int], by_one: bool, addresses: Sequence[int]) -> None:
        """Record a call that returns a status, whose operands are at these addresses."""
        self._append(call, by_one)
        self._addresses.update(addresses)
        self.held += self._library.temporaries()

    def _append(self, call: Callable[[], int], by_one: bool) -> None:
        if not self._stretches or self._stretches[-1][0] != by_one:
            self._stretches.append((by_one, []))
        self._stretches[-1][1].append(call)

    def join(self, later: Tape) -> None:
        """Repeat the calls of a later recording after the own ones."""
        self.held += later.held
        for by_one, calls in later._stretches:
            for call in calls:
                self._append(call, by_one)

    def works_on(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether all operands lie in these arrays or in `held` ones."""
        spans = {(address(array), array.nbytes) for array in (*arrays, *self.held)}
        return all(any(0 <= each - first < size for first, size in spans) for each in self._addresses)

    def __call__(self) -> None:
        """Repeat all calls. Raises OneDnnError if one fails."""
        for by_one, calls in self._stretches:
            status = self._library.threads.run_with_one(_run, calls) if by_one else _run(calls)
            if status:
                raise OneDnnError(f"oneDNN {self._library.version}: a recorded call failed (status {status})")


def _run(calls: Sequence[Callable[[], int]]) -> int:
    """Run these calls until one fails. Returns its status, or 0."""
    for call in calls:
        if status := call():
            return status
    return 0
