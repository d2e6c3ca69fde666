"""Lane: a thread that sums buckets of gradients, one after the other, while the training goes on."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.timeline import EXCHANGE, Event, Timeline


class Bucket:
    """A slice of the flat gradients that is summed as a whole.

    Attributes:
        start: Offset of its first gradient.
        values: The gradients, flat or in rows; see `Reduction.sum`.
        ready: The `Reduction.mark` after which the values are written.
        sum: Is done when the sum has ended; `result` raises the error of a sum that failed.
    """

    def __init__(self, start: int, values: Array, ready: Any) -> None:
        self.start, self.values, self.ready = start, values, ready
        self.sum: Future[None] = Future()

    @property
    def is_summed(self) -> bool:
        return self.sum.done() and self.sum.exception() is None


class Lane:
    """Sums buckets by a reduction, in the same order on all ranks.

    Buckets are summed in the order of `put`, except for the front bucket, that of the first layers. It is complete last
    and needed first, so it overtakes buckets that wait. All ranks sum it after the same number of others. After an
    error no more buckets are summed: they fail too.

    Attributes:
        seconds: Seconds that sums have taken so far.
        front_after: Number of buckets that are summed before the front bucket in this iteration.
        front_position: Best `front_after` for this rank in the last iteration: the number of sums that had begun when
            the front bucket was put, plus one if the thread was waiting for it.
    """

    def __init__(self, reduction: Reduction, timeline: Timeline) -> None:
        self.reduction = reduction
        self.timeline = timeline
        self.seconds = 0.0
        self.front_after: float = math.inf
        self.front_position = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._buckets: deque[Bucket] = deque()
        self._front: Bucket | None = None
        self._begun = 0  # buckets of this iteration whose sum began before that of the front bucket
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False ends the thread
        self._thread: threading.Thread | None = None

    def begin(self, front_after: float) -> None:
        """Begin an iteration, after all buckets of the last one are summed."""
        self.front_after, self._begun = front_after, 0

    def put(self, bucket: Bucket, front: bool) -> None:
        """Let the thread sum this bucket."""
        with self._lock:
            if front:
                self._front = bucket
                self.front_position = self._begun + (self._begun >= self.front_after and bool(self._buckets))
            else:
                self._buckets.append(bucket)
        self._wakes.put(True)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gradient exchange", daemon=True)
            self._thread.start()

    def sum(self, bucket: Bucket, thread: int) -> None:
        """Sum a bucket in the calling thread, which is `thread` of the timeline."""
        iteration, began = self.timeline.iteration, time.perf_counter()
        if self._error is None:
            try:
                self.reduction.start(bucket.values, bucket.ready)
            except BaseException as error:
                self._error = error
        ended = time.perf_counter()
        self.seconds += ended - began
        self.timeline.add(Event("reduce", thread, began, ended, iteration))
        if self._error is None:
            bucket.sum.set_result(None)
        else:
            bucket.sum.set_exception(self._error)

    def close(self) -> None:
        """End the thread, and close the reduction. Collective."""
        if self._thread is not None:
            self._wakes.put(False)
            self._thread.join()
            self._thread = None
        self.reduction.close()

    def _run(self) -> None:
        while self._wakes.get():
            while (bucket := self._next()) is not None:
                self.sum(bucket, EXCHANGE)

    def _next(self) -> Bucket | None:
        """Remove the bucket that is summed next, and return it; None if it has not been put yet."""
        with self._lock:
            front_is_due = self._begun >= self.front_after
            if self._front is not None and (front_is_due or not self._buckets):
                bucket, self._front, self.front_after = self._front, None, math.inf
                return bucket
            if front_is_due or not self._buckets:
                return None
            self._begun += 1
            return self._buckets.popleft()
