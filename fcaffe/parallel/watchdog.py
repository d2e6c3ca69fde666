"""Watchdog: what a rank does, for the process or thread that watches over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Watchdog:
    """Calls `report` with (trains, waits, operation, iteration) at each change.

    A rank trains from its first `beat` on. The iteration is -1 outside of training.

    Attributes:
        beats: The number of changes.
        now: What was reported last.
    """

    def __init__(self, report: Callable[[bool, bool, str, int], object] | None = None) -> None:
        self._report = report
        self._work = ("the start", -1)
        self.beats = 0
        self._trains = False
        self._change(False, *self._work)

    def beat(self, operation: str, iteration: int = -1) -> None:
        """This rank now does `operation`, which may take as long as the time-out allows."""
        self._work = (operation, iteration)
        self._trains = True
        self._change(False, operation, iteration)

    @contextlib.contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Its body waits for other ranks in `operation`, in the iteration of the last beat."""
        self._change(True, operation, self._work[1])
        try:
            yield
        finally:
            self._change(False, *self._work)

    def __str__(self) -> str:
        """The operation, for a message."""
        _, _, operation, iteration = self.now
        return operation if iteration < 0 else f"{operation} of iteration {iteration}"

    def _change(self, waits: bool, operation: str, iteration: int) -> None:
        self.beats += 1
        self.now = (self._trains, waits, operation, iteration)
        if self._report is not None:
            self._report(*self.now)
