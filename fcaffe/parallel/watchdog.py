"""Watchdog: what a rank does, for the process or thread that watches over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

STARTING, WORKING, WAITING = "starting", "working", "waiting"


class Watchdog:
    """Calls `report` with the state, the operation and the iteration, which is -1 outside of training, at each change.

    Attributes:
        beats: The number of changes.
    """

    def __init__(self, report: Callable[[str, str, int], object] | None = None) -> None:
        self._report = report
        self._work = ("the start", -1)
        self.beats = 0
        self._change(STARTING, *self._work)

    def beat(self, operation: str, iteration: int = -1) -> None:
        """This rank now does `operation`, which may take as long as the time-out allows."""
        self._work = (operation, iteration)
        self._change(WORKING, operation, iteration)

    @contextlib.contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Its body waits for other ranks in `operation`, in the iteration of the last beat."""
        self._change(WAITING, operation, self._work[1])
        try:
            yield
        finally:
            self._change(WORKING, *self._work)

    def __str__(self) -> str:
        """The operation, for a message."""
        return described(*self.now[1:])

    def _change(self, state: str, operation: str, iteration: int) -> None:
        self.beats += 1
        self.now = (state, operation, iteration)
        if self._report is not None:
            self._report(state, operation, iteration)


def described(operation: str, iteration: int) -> str:
    return operation if iteration < 0 else f"{operation} of iteration {iteration}"
