"""Gradients handed to a reduction bucket by bucket, while the backward pass still runs."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import Any

import numpy as np

from fcaffe.engines.engine import Pending
from fcaffe.net.blob import Array
from fcaffe.net.state import State
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.parallel.reductions.waiting import wait_until
from fcaffe.parallel.riders import Riders
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers.exchange import GradientExchange
from fcaffe.timeline import EXCHANGE, REDUCE, TRAINING, Event, Timeline

LARGEST = 4 << 20  # bytes of a bucket whose size is not given,
SMALLEST = 256 << 10  # and below which the latency of a sum counts for more than its bytes


class ReducingExchange(GradientExchange):
    """Cuts the flat gradients, from the end to the front as backward finishes them, into buckets of `bucket` bytes.

    Without a size, a bucket is full at 4 MiB, or when it holds as much as is still to come: so a small net has several
    too, and the last one, which nothing of backward hides, is small. Sizes of layers alone decide, so each run cuts the
    same.

    With `overlap` a thread sums one bucket after the other while backward goes on; without, all are summed at the end.
    Every rank cuts alike, so the sums meet. `seconds` is what the sums have taken so far, `exposed` how much of it the
    training has waited for.

    On a GPU what `ready` calls written is under way there, and each sum comes after it. A reduction whose sums only
    take their place on streams needs no thread, and makes the host wait for nothing.
    """

    def __init__(
        self,
        reduction: Reduction,
        bucket: int | None = None,
        overlap: bool = True,
        watchdog: Watchdog | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.reduction = reduction
        self.bucket: float = LARGEST if bucket is None else bucket
        self._shrinks = bucket is None
        self.cut: list[int] = []  # the bytes of each bucket of the last iteration
        self.overlap = overlap
        self.watchdog = watchdog or Watchdog()
        self.timeline = timeline or Timeline()
        self.seconds = 0.0
        self.exposed = 0.0
        self.takes_momentum = reduction.takes_momentum
        self.compression = reduction.compression
        self.on_streams = reduction.on_streams
        self._buckets: queue.Queue[tuple[Array, Any] | None] = queue.Queue()  # each with what `mark` gave
        self._kept: list[tuple[Array, Any]] = []  # likewise, for `finish`
        self._sent_along = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def allocate(self, xp: Any, count: int, riders: int = 0) -> Array:
        if riders and self.reduction.exact and not self.reduction.on_device and self.reduction.ranks > 1:
            self.riders = riders
            ranks = self.reduction.ranks
            self._with_riders = self.reduction.allocate(count + Riders.size(riders, ranks))
            self._riders = Riders(self._with_riders[count:], self.reduction.rank, ranks)
            return self._with_riders[:count]
        return self.reduction.allocate(count)

    def send_along(self, numbers: np.ndarray) -> None:
        self._riders.put(numbers)
        self._sent_along = True

    def arrived(self) -> np.ndarray:
        return self._riders.take()

    def take_momentum(self, momentum: float, clip: float) -> None:
        self.reduction.take_momentum(momentum, clip)
        if clip >= 0:
            self.bucket, self._shrinks = math.inf, False  # the norm wants all gradients at once

    def begin(self, gradients: Array) -> None:
        if self._sent_along:  # behind the gradients, so they go with the first bucket
            gradients, self._sent_along = self._with_riders, False
        self._gradients, self._end = gradients, gradients.size
        self._kept.clear()
        self.cut.clear()

    def ready(self, start: int) -> None:
        held, to_come = 4 * (self._end - start), 4 * start
        if held >= self.bucket or (self._shrinks and held >= max(to_come, SMALLEST)):
            self._hand_over(start)

    def finish(self) -> None:
        self._hand_over(0)
        began = time.perf_counter()
        with self.watchdog.waiting("the sum of the gradients"), self.timeline.span(REDUCE):
            for bucket, ready in self._kept:
                self._sum(bucket, ready, TRAINING)
            self._buckets.join()
        if self._error is not None:
            raise self._error
        self.reduction.finish()
        self.reduction.raise_failed()
        if not self.reduction.on_device:
            self.exposed += time.perf_counter() - began

    def wait_for(self, pending: Pending) -> None:
        if not self.reduction.on_device:
            pending.wait()
            return

        def is_done() -> bool:
            self.reduction.raise_failed()
            return pending.done

        with self.watchdog.waiting("the sum of the gradients"):
            wait_until(is_done)

    def state(self) -> State:
        return self.reduction.state()

    def restore_state(self, state: State) -> None:
        self.reduction.restore_state(state)

    def summary(self) -> str:
        if self.reduction.on_device:
            self.seconds, self.exposed = self.reduction.seconds_on_device()
        more = self.reduction.summary()
        if self.on_streams and not self.seconds:  # all were part of CUDA graphs
            return more
        hidden = max(0.0, self.seconds - self.exposed)
        sizes = " + ".join(f"{size / 1e6:.2f}" for size in self.cut)
        buckets = f"{len(self.cut)} buckets of {sizes} MB" if len(self.cut) <= 6 else f"{len(self.cut)} buckets"
        took = f"Sums of gradients took {self.seconds:.2f} s, {hidden:.2f} s of it hidden behind backward; {buckets}"
        return f"{took}; {more}" if more else took

    def close(self) -> None:
        """Give back the reduction's communicators and memory, the gradients' too. Collective."""
        if self._thread is not None:
            self._buckets.put(None)
            self._thread.join()
            self._thread = None
        self.reduction.close()

    def _hand_over(self, start: int) -> None:
        """The bucket from `start` to where the last one began."""
        if start >= self._end:
            return
        bucket = self._gradients[start : self._end]
        self._end = start
        self.cut.append(bucket.nbytes)
        ready = self.reduction.mark()
        if not self.overlap:
            self._kept.append((bucket, ready))
        elif self.on_streams:
            self._sum(bucket, ready, TRAINING)
        else:
            self._buckets.put((bucket, ready))
            if self._thread is None:
                self._thread = threading.Thread(target=self._sum_forever, name="gradient exchange", daemon=True)
                self._thread.start()

    def _sum_forever(self) -> None:
        while (work := self._buckets.get()) is not None:
            bucket, ready = work
            try:
                if self._error is None:
                    self._sum(bucket, ready, EXCHANGE)
            except BaseException as problem:  # raised by `finish`, in the thread that trains
                self._error = problem
            finally:
                self._buckets.task_done()

    def _sum(self, bucket: Array, ready: Any, thread: int) -> None:
        began = time.perf_counter()
        self.reduction.start(bucket, ready)
        ended = time.perf_counter()
        self.seconds += ended - began
        self.timeline.add(Event("reduce", thread, began, ended, self.timeline.iteration))
