"""Gradients handed to a reduction bucket by bucket, while the backward pass still runs."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import Any, Protocol

from fcaffe.net.blob import Array
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers.exchange import GradientExchange
from fcaffe.timeline import EXCHANGE, REDUCE, TRAINING, Event, Timeline

DEFAULT_BUCKET = 4 << 20  # bytes


class Reduction(Protocol):
    """Sums a flat buffer over all ranks, in place; see `fcaffe.parallel.reductions`."""

    def allocate(self, count: int) -> Array: ...

    def sum(self, buffer: Array) -> None: ...

    def summary(self) -> str: ...


class ReducingExchange(GradientExchange):
    """Cuts the flat gradients, from the end to the front as backward finishes them, into buckets of `bucket` bytes.

    With `overlap` a thread sums one bucket after the other while backward goes on; without, all are summed at the end.
    Every rank cuts alike, so the sums meet. `seconds` is what the sums have taken so far, `exposed` how much of it the
    training has waited for.
    """

    def __init__(
        self,
        reduction: Reduction,
        bucket: int = DEFAULT_BUCKET,
        overlap: bool = True,
        watchdog: Watchdog | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.reduction = reduction
        self.bucket: float = bucket
        self.overlap = overlap
        self.watchdog = watchdog or Watchdog()
        self.timeline = timeline or Timeline()
        self.seconds = 0.0
        self.exposed = 0.0
        self.takes_momentum = getattr(reduction, "takes_momentum", False)  # a compression may
        self._buckets: queue.Queue[Array] = queue.Queue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def allocate(self, xp: Any, count: int) -> Array:
        return self.reduction.allocate(count)

    def take_momentum(self, momentum: float, clip: float) -> None:
        self.reduction.take_momentum(momentum, clip)  # type: ignore[attr-defined]
        if clip >= 0:
            self.bucket = math.inf  # the norm wants all gradients at once

    def begin(self, gradients: Array) -> None:
        self._gradients, self._end = gradients, gradients.size

    def ready(self, start: int) -> None:
        if 4 * (self._end - start) >= self.bucket:
            self._hand_over(start)

    def finish(self) -> None:
        self._hand_over(0)
        began = time.perf_counter()
        with self.watchdog.waiting("the sum of the gradients"), self.timeline.span(REDUCE):
            self._buckets.join() if self.overlap else self._sum_all()
        self.exposed += time.perf_counter() - began
        if self._error is not None:
            raise self._error

    def summary(self) -> str:
        hidden = max(0.0, self.seconds - self.exposed)
        took = f"Sums of gradients took {self.seconds:.2f} s, {hidden:.2f} s of it hidden behind backward"
        more = self.reduction.summary()
        return f"{took}; {more}" if more else took

    def _hand_over(self, start: int) -> None:
        """The bucket from `start` to where the last one began."""
        if start < self._end:
            self._buckets.put(self._gradients[start : self._end])
            self._end = start
        if self.overlap and self._thread is None:
            self._thread = threading.Thread(target=self._sum_forever, name="gradient exchange", daemon=True)
            self._thread.start()

    def _sum_forever(self) -> None:
        while True:
            self._sum_next()

    def _sum_all(self) -> None:
        while not self._buckets.empty():
            self._sum_next()

    def _sum_next(self) -> None:
        bucket = self._buckets.get()
        began = time.perf_counter()
        try:
            if self._error is None:
                self.reduction.sum(bucket)
        except BaseException as problem:  # raised by `finish`, in the thread that trains
            self._error = problem
        finally:
            ended = time.perf_counter()
            self.seconds += ended - began
            thread = EXCHANGE if self.overlap else TRAINING
            self.timeline.add(Event("reduce", thread, began, ended, self.timeline.iteration))
            self._buckets.task_done()
