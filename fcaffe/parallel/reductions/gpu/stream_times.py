"""How long sums on a device take, measured by events that nobody waits for."""

from __future__ import annotations

from collections import deque
from typing import Any


class StreamTimes:
    """`seconds` from when sums could begin until all were there, and how many of them were `exposed`: after the last
    gradient had been computed. Of what has come to an end so far, all times together; CUDA graphs are not timed."""

    def __init__(self, cupy: Any) -> None:
        self.seconds = self.exposed = 0.0
        self._cuda = cupy.cuda
        self._began: Any = None
        self._computed: Any = None
        self._under_way: deque[tuple[Any, Any, Any]] = deque()

    def begin(self, stream: Any, computed: Any) -> None:
        """One more sum begins on the stream, of gradients that are there at the event `computed`, which has a time."""
        if stream.is_capturing():
            return
        if self._began is None:
            self._began = self._cuda.Event()
            self._began.record(stream)
        self._computed = computed

    def end(self, stream: Any) -> None:
        """All have been begun, and end on this stream."""
        if self._began is None:
            return
        ended = self._cuda.Event()
        ended.record(stream)
        self._under_way.append((self._began, self._computed, ended))
        self._began = None
        self.collect()

    def collect(self) -> None:
        """Count what has come to an end."""
        while self._under_way and self._under_way[0][2].done:
            began, computed, ended = self._under_way.popleft()
            self.seconds += self._cuda.get_elapsed_time(began, ended) / 1000
            self.exposed += max(0.0, self._cuda.get_elapsed_time(computed, ended)) / 1000
