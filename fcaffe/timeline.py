"""Where the time of a training goes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

TRAINING, EXCHANGE = range(2)  # threads
KEPT = 100_000  # events that one worker keeps for a trace; a long run's trace has its end
KEPT_BY_ALL = 1_000_000

DATA, FORWARD, BACKWARD, REDUCE, WAIT, UPDATE, TEST, SNAPSHOT, OTHER = KINDS = (
    "data wait",
    "forward",
    "backward",
    "exposed reduce",
    "wait for others",
    "update",
    "test",
    "snapshot",
    "other",
)


class Event(NamedTuple):
    """A span of one of the threads; times in seconds of `time.perf_counter`."""

    name: str
    thread: int
    begin: float
    end: float
    iteration: int


class Timeline:
    """Adds up how long the training thread is in spans of each kind, and keeps the last `kept` of them as events.

    `seconds` has the own time of each kind: that of a span in another one does not count for the outer one. So the
    sum over all kinds is the time since `begin`, while a span of kind OTHER is around everything.
    """

    def __init__(self, kept: int = 0) -> None:
        self.events: deque[Event] = deque(maxlen=kept)
        self.dropped = 0
        self.iteration = 0
        self.begin()

    def begin(self) -> None:
        """Forget what has been, and count from now."""
        self.events.clear()
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.origin = time.perf_counter()
        self._inner = [0.0]  # for each open span the seconds in those within it

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """The body of the `with`, in the training thread, is of this kind."""
        self._inner.append(0.0)
        iteration, began = self.iteration, time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.seconds[kind] += ended - began - self._inner.pop()
            self._inner[-1] += ended - began
            self.add(Event(kind, TRAINING, began, ended, iteration))

    def add(self, event: Event) -> None:
        """Keep an event of any thread."""
        if self.events.maxlen:
            self.dropped += len(self.events) == self.events.maxlen
            self.events.append(event)
