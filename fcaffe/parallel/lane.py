"""Lane: a thread that sums buckets of gradients, one after the other, while the training goes on."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.timeline import EXCHANGE, Event, Timeline


class Bucket:
    """A slice of the flat gradients that is summed as a whole.

    Attributes:
        start: Offset of its first gradient.
        values: The gradients.
        ready: The `Reduction.mark` after which the values are written.
    """

    def __init__(self, start: int, values: Array, ready: Any) -> None:
        self.start, self.values, self.ready = start, values, ready
        self._ended = threading.Event()
        self._error: BaseException | None = None

    @property
    def is_summed(self) -> bool:
        return self._ended.is_set() and self._error is None

    def end(self, error: BaseException | None) -> None:
        """Mark the bucket as summed, or as failed."""
        self._error = error
        self._ended.set()

    def wait(self) -> None:
        """Wait for the end of the sum. Raises its error."""
        self._ended.wait()
        if self._error is not None:
            raise self._error


class Lane:
    """Sums buckets by a reduction, in the same order on all ranks.

    The front bucket, that of the first layers, is complete last and needed first. It comes after `front_after` others,
    which are summed in the order in which they were put. After an error no more buckets are summed: they fail too.

    Attributes:
        seconds: What sums have taken so far.
        front_after: The position of the front bucket in this iteration.
        front_position: The position that would have suited this rank best in the last iteration: after the sums that
            had begun when the bucket came, or one later if the thread was waiting for it.
    """

    def __init__(self, reduction: Reduction, timeline: Timeline) -> None:
        self.reduction = reduction
        self.timeline = timeline
        self.seconds = 0.0
        self.front_after: float = math.inf
        self.front_position = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._buckets: deque[Bucket] = deque()
        self._front: Bucket | None = None
        self._begun = 0  # buckets of this iteration whose sum began before that of the front bucket
        self._closing = False
        self._thread: threading.Thread | None = None

    def begin(self, front_after: float) -> None:
        """Begin an iteration, after all buckets of the last one are summed."""
        self.front_after, self._begun = front_after, 0

    def put(self, bucket: Bucket, front: bool) -> None:
        """Let the thread sum this bucket."""
        with self._changed:
            if front:
                self._front = bucket
                self.front_position = self._begun + (self._begun >= self.front_after and bool(self._buckets))
            else:
                self._buckets.append(bucket)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gradient exchange", daemon=True)
            self._thread.start()

    def sum(self, bucket: Bucket, thread: int) -> None:
        """Sum a bucket in the calling thread, which is `thread` of the timeline. Its `wait` raises the error."""
        iteration, began = self.timeline.iteration, time.perf_counter()
        if self._error is None:
            try:
                self.reduction.start(bucket.values, bucket.ready)
            except BaseException as error:
                self._error = error
        ended = time.perf_counter()
        self.seconds += ended - began
        self.timeline.add(Event("reduce", thread, began, ended, iteration))
        bucket.end(self._error)

    def close(self) -> None:
        """End the thread, and close the reduction. Collective."""
        if self._thread is not None:
            with self._changed:
                self._closing = True
                self._changed.notify()
            self._thread.join()
            self._thread = None
        self.reduction.close()

    def _run(self) -> None:
        while (bucket := self._take()) is not None:
            self.sum(bucket, EXCHANGE)

    def _take(self) -> Bucket | None:
        """Wait for the bucket that comes next; None at the end."""
        with self._changed:
            while not self._closing:
                is_its_turn = self._begun >= self.front_after
                if self._front is not None and (is_its_turn or not self._buckets):
                    bucket, self._front = self._front, None
                    self.front_after = math.inf
                    return bucket
                if self._buckets and not is_its_turn:
                    self._begun += 1
                    return self._buckets.popleft()
                self._changed.wait()
            return None
