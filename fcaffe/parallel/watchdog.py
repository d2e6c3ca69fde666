"""Watchdog: what a rank does, for the process or thread that watches over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

STATES = LOADING, TRAINING, DONE = "loading", "training", "done"


class Doing(NamedTuple):
    """`waits`: for other ranks. `iteration` is -1 outside of training."""

    state: str = LOADING
    waits: bool = False
    operation: str = "the start"
    iteration: int = -1

    def __str__(self) -> str:
        return self.operation if self.iteration < 0 else f"{self.operation} of iteration {self.iteration}"


class Watchdog:
    """Calls `report` with what the rank does now, at each change. A rank trains from its first `beat` on.

    Attributes:
        beats: The number of changes.
        now: What was reported last.
    """

    def __init__(self, report: Callable[[Doing], object] | None = None) -> None:
        self._report = report
        self._work = Doing()
        self.beats = 0
        self._change(self._work)

    def beat(self, operation: str, iteration: int = -1) -> None:
        """This rank now does `operation`, which may take as long as the time-out allows."""
        self._work = Doing(TRAINING, False, operation, iteration)
        self._change(self._work)

    @contextlib.contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Its body waits for other ranks in `operation`, in the iteration of the last beat."""
        self._change(self._work._replace(waits=True, operation=operation))
        try:
            yield
        finally:
            self._change(self._work)

    def _change(self, doing: Doing) -> None:
        self.beats += 1
        self.now = doing
        if self._report is not None:
            self._report(doing)
