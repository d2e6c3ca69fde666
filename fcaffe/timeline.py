"""Measures where the time of a training goes, and summarises it for the end of the log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

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


class Timeline:
    """Sums the training thread's time by kind of span. That thread has called `begin`; spans of others do not count.

    `seconds` has the exclusive time of each kind: the time of an inner span does not count for the outer one. With a
    span of kind OTHER around everything, the kinds add up to the time since `begin`.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Reset all times."""
        self._thread = threading.get_ident()
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._inner = [0.0]  # seconds of the inner spans of each open span

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the body, in the training thread, as this kind."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._inner.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - began
            self.seconds[kind] += taken - self._inner.pop()
            self._inner[-1] += taken


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
    work = [seconds[FORWARD] + seconds[BACKWARD] for seconds in everyone]
    slowest, middle = work.index(max(work)), float(np.median(work))
    more = f", {work[slowest] / middle - 1:.1%} more than the median" if middle else ""
    waited = [seconds[WAIT] + seconds[REDUCE] for seconds in everyone]
    longer = max(0.0, np.median(waited[:slowest] + waited[slowest + 1 :]) - waited[slowest])
    lines.append(
        f"Slowest worker: rank {slowest} on {hosts[slowest]}, {work[slowest]:.2f} s in forward and backward{more}; the "
        f"others waited {longer:.2f} s longer than it"
    )
    return lines
