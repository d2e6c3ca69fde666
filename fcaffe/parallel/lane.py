"""Lane: a thread that sums buckets of gradients, one after the other, while the training goes on."""

from __future__ import annotations

import queue
import threading
import time
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
    """Sums buckets by a reduction, in the order of `put`, which is the same on all ranks.

    After an error no more buckets are summed: they fail too.

    Attributes:
        seconds: Seconds that sums have taken so far.
    """

    def __init__(self, reduction: Reduction, timeline: Timeline) -> None:
        self.reduction = reduction
        self.timeline = timeline
        self.seconds = 0.0
        self._error: BaseException | None = None
        self._buckets: queue.SimpleQueue[Bucket | None] = queue.SimpleQueue()  # None ends the thread
        self._thread: threading.Thread | None = None

    def put(self, bucket: Bucket) -> None:
        """Let the thread sum this bucket."""
        self._buckets.put(bucket)
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
            self._buckets.put(None)
            self._thread.join()
            self._thread = None
        self.reduction.close()

    def _run(self) -> None:
        while (bucket := self._buckets.get()) is not None:
            self.sum(bucket, EXCHANGE)
