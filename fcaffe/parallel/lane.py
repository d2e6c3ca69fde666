"""A thread that sums buckets of gradients, one after the other, while the training goes on."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.scheduling import answer_promptly
from fcaffe.timeline import EXCHANGE, Event, Timeline

SHORT = 3e-4  # seconds that the thread may wait for the front without changing its place


@dataclass
class Bucket:
    """The part of the flat gradients from offset `start` on; `values` are what is summed, once `ready` (of
    `Reduction.mark`) has come."""

    start: int
    values: Array
    ready: Any
    summed: threading.Event = field(default_factory=threading.Event)


class Lane:
    """Sums buckets by a reduction, in one order on all ranks: the first `front_after` as they come, then the front one,
    that of the layers which the next forward pass begins with, though it comes last, then the rest.

    `seconds` is what sums have taken so far; `error` is what has gone wrong, after which no more buckets are summed.
    """

    def __init__(self, reduction: Reduction, timeline: Timeline) -> None:
        self.reduction = reduction
        self.timeline = timeline
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.front_after: float = math.inf
        self._changed = threading.Condition()
        self._buckets: deque[Bucket] = deque()
        self._front: Bucket | None = None
        self._begun = 0  # buckets of this iteration before the front one
        self._waits_since: float | None = None  # for the front, with others at hand
        self._ends = False
        self._thread: threading.Thread | None = None

    def begin(self, front_after: float) -> None:
        """An iteration, once all buckets of the last one are summed."""
        self.front_after, self._begun = front_after, 0

    def put(self, bucket: Bucket, front: bool) -> None:
        """Let the thread sum this bucket."""
        with self._changed:
            if front:
                self._front = bucket
            else:
                self._buckets.append(bucket)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gradient exchange", daemon=True)
            self._thread.start()

    @property
    def best_place(self) -> int:
        """After how many others the front bucket, if it came now, would best be summed in iterations like this one."""
        waits_since = self._waits_since
        return self._begun + (waits_since is not None and time.perf_counter() - waits_since > SHORT)

    def sum(self, bucket: Bucket, thread: int) -> None:
        """Sum it here and now, in `thread` of the timeline."""
        iteration, began = self.timeline.iteration, time.perf_counter()
        self.reduction.start(bucket.values, bucket.ready)
        ended = time.perf_counter()
        self.seconds += ended - began
        self.timeline.add(Event("reduce", thread, began, ended, iteration))
        bucket.summed.set()

    def close(self) -> None:
        """End the thread, and give back what the reduction holds. Collective."""
        if self._thread is not None:
            with self._changed:
                self._ends = True
                self._changed.notify()
            self._thread.join()
            self._thread = None
        self.reduction.close()

    def _run(self) -> None:
        answer_promptly()
        while (bucket := self._take()) is not None:
            try:
                if self.error is None:
                    self.sum(bucket, EXCHANGE)
            except BaseException as problem:  # raised by the thread that trains
                self.error = problem
            finally:
                bucket.summed.set()

    def _take(self) -> Bucket | None:
        """The bucket that comes next, once it is there; None at the end."""
        with self._changed:
            while not self._ends:
                is_its_turn = self._begun >= self.front_after
                if self._front is not None and (is_its_turn or not self._buckets):
                    bucket, self._front = self._front, None
                    self.front_after, self._waits_since = math.inf, None
                    return bucket
                if self._buckets and not is_its_turn:
                    self._begun += 1
                    return self._buckets.popleft()
                if self._buckets and self._waits_since is None:
                    self._waits_since = time.perf_counter()
                self._changed.wait()
            return None
