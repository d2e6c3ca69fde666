"""StreamTimes: the time of sums on a device, measured by events for which nothing waits."""

from __future__ import annotations

from collections import deque
from typing import Any


class StreamTimes:
    """`seconds` is the time from when sums could begin until all ended, and `exposed` the part of it after the last
    gradient was computed; both are totals of the sums that have ended. CUDA graphs are not timed."""

    def __init__(self, cupy: Any) -> None:
        self.seconds = self.exposed = 0.0
        self._cuda = cupy.cuda
        self._began: Any = None
        self._computed: Any = None
        self._under_way: deque[tuple[Any, Any, Any]] = deque()

    def begin(self, stream: Any, computed: Any) -> None:
        """Record that a sum begins on the stream, of gradients that are complete at the event `computed`."""
        if stream.is_capturing():
            return
        if self._began is None:
            self._began = self._cuda.Event()
            self._began.record(stream)
        self._computed = computed

    def end(self, stream: Any) -> None:
        """Record that all sums have been enqueued, and end on this stream."""
        if self._began is None:
            return
        ended = self._cuda.Event()
        ended.record(stream)
        self._under_way.append((self._began, self._computed, ended))
        self._began = None
        self.collect()

    def collect(self) -> None:
        """Add the times of sums that have ended."""
        while self._under_way and self._under_way[0][2].done:
            began, computed, ended = self._under_way.popleft()
            self.seconds += self._cuda.get_elapsed_time(began, ended) / 1000
            self.exposed += max(0.0, self._cuda.get_elapsed_time(computed, ended)) / 1000
