"""Measures where the time of a training goes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

TRAINING, EXCHANGE = range(2)  # threads
KEPT = 100_000  # the last events that a worker retains for a trace
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
    """Sums the training thread's time by kind of span, and retains the last `kept` spans as events.

    `seconds` has the exclusive time of each kind: the time of an inner span does not count for the outer one. With a
    span of kind OTHER around everything, the kinds add up to the time since `begin`.
    """

    def __init__(self, kept: int = 0) -> None:
        self.events: deque[Event] = deque(maxlen=kept)
        self.dropped = 0
        self.iteration = 0
        self.begin()

    def begin(self) -> None:
        """Reset all times and events."""
        self.events.clear()
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.origin = time.perf_counter()
        self._inner = [0.0]  # seconds of the inner spans of each open span

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the body, in the training thread, as this kind."""
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
        """Retain an event of any thread."""
        if self.events.maxlen:
            self.dropped += len(self.events) == self.events.maxlen
            self.events.append(event)
