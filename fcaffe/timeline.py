"""Measures where the time of a training goes, and summarises it for the end of the log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

TRAINING, EXCHANGE = range(2)  # threads
KEPT = 100_000  # the last events that a worker retains for a trace
KEPT_BY_ALL = 1_000_000
STRAGGLING, LEAST_LAG = 1.5, 5.0  # times the median, and seconds more than it, from which on a worker is too slow

DATA, FORWARD, BACKWARD, SHARDS, REDUCE, WAIT, UPDATE, TEST, SNAPSHOT, OTHER = KINDS = (
    "data wait",
    "forward",
    "backward",
    "adding shards",
    "exposed reduce",
    "wait for others",
    "update",
    "test",
    "snapshot",
    "other",
)
_COLUMNS = f"{'':<16}{'share':>8}{'min':>10}{'median':>10}{'max':>10}"


class Event(NamedTuple):
    """A span of one of the threads; times in seconds of `time.perf_counter`."""

    name: str
    thread: int
    begin: float
    end: float
    iteration: int


class Timeline:
    """Sums the training thread's time by kind of span, and retains the last `kept` spans as events. That thread has
    called `begin`; spans of others do not count.

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
        self._thread = threading.get_ident()
        self.events.clear()
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.origin = time.perf_counter()
        self._inner = [0.0]  # seconds of the inner spans of each open span

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the body, in the training thread, as this kind."""
        if threading.get_ident() != self._thread:
            yield
            return
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


def work_of(seconds: dict[str, float]) -> float:
    """Seconds that a worker has computed."""
    return seconds[FORWARD] + seconds[BACKWARD]


def summarize(everyone: Sequence[dict[str, float]], hosts: Sequence[str]) -> list[str]:
    """Lines for the log, from the `seconds` of each worker's timeline and its host.

    For several workers each line has a share of the total time, and the minimum, median and maximum over the workers.
    The slowest worker is the one with the most seconds in forward and backward.
    """
    total = sum(sum(seconds.values()) for seconds in everyone) or 1e-9
    kinds = [kind for kind in KINDS if any(seconds[kind] for seconds in everyone)]
    if len(everyone) == 1:
        parts = [f"{kind} {everyone[0][kind]:.2f} s ({everyone[0][kind] / total:.1%})" for kind in kinds]
        return [f"Training took {total:.2f} s: {', '.join(parts)}"]
    lines = [f"Training took {total / len(everyone):.2f} s; seconds of each of {len(everyone)} workers:", _COLUMNS]
    for kind in kinds:
        values = [seconds[kind] for seconds in everyone]
        share = sum(values) / total
        lines.append(f"{kind:<16}{share:>8.1%}{min(values):>10.2f}{np.median(values):>10.2f}{max(values):>10.2f}")
    work = [work_of(seconds) for seconds in everyone]
    slowest, middle = work.index(max(work)), float(np.median(work))
    more = f", {work[slowest] / middle - 1:.1%} more than the median" if middle else ""
    waited = [seconds[WAIT] + seconds[REDUCE] for seconds in everyone]
    longer = max(0.0, np.median(waited[:slowest] + waited[slowest + 1 :]) - waited[slowest])
    lines.append(
        f"Slowest worker: rank {slowest} on {hosts[slowest]}, {work[slowest]:.2f} s in forward and backward{more}; the "
        f"others waited {longer:.2f} s longer than it"
    )
    return lines


def straggler(work: Sequence[float], hosts: Sequence[str]) -> tuple[int, str] | None:
    """The rank that took much longer to compute than most others, and a warning; None if none did.

    `work` has the seconds of each worker, over the same iterations.
    """
    slowest, middle = work.index(max(work)), float(np.median(work))
    if len(work) < 3 or work[slowest] < max(STRAGGLING * middle, middle + LEAST_LAG):
        return None
    return slowest, (
        f"rank {slowest} on {hosts[slowest]} computed for {work[slowest] / middle:.1f} times as long as the median "
        f"worker, {work[slowest]:.0f} s, and the others waited for it: see what else runs on that host, or leave it out"
    )
