"""ReducingExchange: sums gradients by a reduction, bucket by bucket, while the backward pass still runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fcaffe.engines.base import Pending
from fcaffe.net.blob import Array
from fcaffe.net.exchange import GradientExchange
from fcaffe.net.layer import State
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.parallel.sizes import bucket_size, cuts
from fcaffe.parallel.waiting import wait_until
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.timeline import REDUCE, Timeline


class ReducingExchange(GradientExchange):
    """Cuts the flat gradients into buckets, from the end to the front as backward finishes them.

    A bucket has at least `bucket` bytes; by default `bucket_size` chooses. Only the sizes of layers decide where
    gradients are cut, so all ranks cut alike in every run.

    With `overlap` a thread sums one bucket after the other while the training goes on. Without it all are summed at the
    end of backward. After an error no more buckets are summed: they fail too.

    On a GPU `ready` may be called before the gradients are computed. The streams order each sum behind them. If the
    host waits for no sum of the reduction, there is no thread.

    Attributes:
        cut: The bytes of each bucket of the last iteration.
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
        self.bucket: float | None = bucket
        self.cut: list[int] = []
        self.overlap = overlap
        self.watchdog = watchdog or Watchdog()
        self.timeline = timeline or Timeline()
        self.seconds = self.exposed = 0.0
        self.applies_momentum = reduction.applies_momentum
        self.compression = reduction.compression
        self.on_streams = not reduction.host_waits
        self._lane = ThreadPoolExecutor(1, "gradient exchange")
        self._end = 0  # offset of the end of the next bucket
        self._unfinished: list[Callable[[], None]] = []  # each sums a bucket of this iteration, or waits for the sum
        self._error: BaseException | None = None

    def allocate(self, xp: Any, count: int) -> Array:
        return self.reduction.allocate(count)

    def set_momentum(self, momentum: float, clip: float) -> None:
        self.reduction.set_momentum(momentum, clip)
        if clip >= 0:
            self.bucket = math.inf  # the norm needs all gradients at once

    def begin(self, gradients: Array) -> None:
        if self._unfinished:
            self.finish()
        self._gradients, self._end = gradients, gradients.shape[-1]
        self.cut.clear()
        self._size = bucket_size(self._end, self.reduction.ranks) if self.bucket is None else self.bucket / 4

    def ready(self, start: int) -> None:
        for begin in cuts(start, self._end, self._size):
            self._hand_over(begin)

    def finish(self) -> None:
        self._hand_over(0)
        began = time.perf_counter()
        if self._unfinished:
            with self.watchdog.waiting("the sum of the gradients"), self.timeline.span(REDUCE):
                for finish in self._unfinished:
                    finish()
            self._unfinished.clear()
        self.reduction.finish()
        self.reduction.raise_failed()
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
        more = self.reduction.summary()
        if self.on_streams:  # the host waits for no sum, and does not know how long it takes
            return more
        hidden = max(0.0, self.seconds - self.exposed)
        sizes = " + ".join(f"{size / 1e6:.2f}" for size in self.cut)
        buckets = f"{len(self.cut)} bucket{'s' * (len(self.cut) != 1)}" + f" of {sizes} MB" * (len(self.cut) <= 6)
        took = f"Sums of gradients took {self.seconds:.2f} s, {hidden:.2f} s of it hidden behind forward and backward"
        return "; ".join(filter(None, (took, buckets, more)))

    def close(self) -> None:
        """End the thread, and close the reduction. Collective."""
        self._lane.shutdown()
        self.reduction.close()

    def _hand_over(self, start: int) -> None:
        """Hand over the bucket from offset `start` to the start of the last one."""
        if start >= self._end:
            return
        sum_bucket = partial(self._sum, self._gradients[..., start : self._end], self.reduction.mark())
        self.cut.append(4 * (self._end - start))
        self._end = start
        if not self.overlap:
            self._unfinished.append(sum_bucket)
        elif self.on_streams:
            sum_bucket()
        else:
            self._unfinished.append(self._lane.submit(sum_bucket).result)

    def _sum(self, bucket: Array, ready: Any) -> None:
        """Sum a bucket, written after the mark `ready`."""
        began = time.perf_counter()
        try:
            if self._error is not None:
                raise self._error
            self.reduction.start(bucket, ready)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.seconds += time.perf_counter() - began
