"""Gradients handed to a reduction bucket by bucket, while the backward pass still runs."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from fcaffe.engines.engine import Pending
from fcaffe.net.blob import Array
from fcaffe.net.state import State
from fcaffe.parallel.buckets import bucket_size, cuts
from fcaffe.parallel.lane import Bucket, Lane
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.parallel.riders import Riders
from fcaffe.parallel.waiting import wait_until
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers.exchange import GradientExchange
from fcaffe.timeline import REDUCE, TRAINING, Timeline

ALIGNMENT = 16  # floats: gradients begin at the start of a cache line


class ReducingExchange(GradientExchange):
    """Cuts the flat gradients, from the end to the front as backward finishes them, into buckets.

    A bucket has `bucket` bytes or more, or what `bucket_size` says. Sizes of layers alone decide, so every rank, and
    every run, cuts alike.

    With `overlap` a thread sums one bucket after the other while the training goes on; without, all are summed at the
    end of backward. The last bucket, with which the next forward pass begins, may overtake others that still wait (see
    Lane): ranks tell one another along with it how many there were, and in the next iteration it comes after the most
    of them. `exposed` is for how many seconds the training has waited for sums.

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
        self.bucket: float | None = bucket
        self.cut: list[int] = []  # the bytes of each bucket of the last iteration
        self.overlap = overlap
        self.watchdog = watchdog or Watchdog()
        self.timeline = timeline or Timeline()
        self.exposed = 0.0
        self.takes_momentum = reduction.takes_momentum
        self.compression = reduction.compression
        self.on_streams = reduction.on_streams
        self._lane = Lane(reduction, self.timeline)
        self._end = 0  # where the bucket ends that is still to be handed over
        self._buckets: list[Bucket] = []  # of this iteration, from the end of the gradients to the front
        self._room = 0  # floats of the buffer before the gradients, which end with what rides along
        self._sent_along = False
        self._front_after = math.inf  # buckets that are summed before the one in front, if there are as many

    def allocate(self, xp: Any, count: int, riders: int = 0) -> Array:
        reduction = self.reduction
        can_ride = (reduction.exact or reduction.carries) and not reduction.on_device and reduction.ranks > 1
        if not (riders and can_ride):
            return reduction.allocate(count)
        self.riders = riders
        size = Riders.size(riders + 1, reduction.ranks)  # and the best place of the front bucket
        if reduction.exact:
            self._room = -(-size // ALIGNMENT) * ALIGNMENT
            self._buffer = reduction.allocate(self._room + count)
            part, gradients = self._buffer[self._room - size : self._room], self._buffer[self._room :]
        else:
            part, gradients = np.zeros(size, np.float32), reduction.allocate(count)
            reduction.carry(part)
        self._riders = Riders(part, reduction.rank, reduction.ranks)
        return gradients

    def send_along(self, numbers: np.ndarray) -> None:
        self._numbers = numbers
        self._sent_along = True

    def arrived(self) -> np.ndarray:
        return self._arrived[:, 1:]

    def take_momentum(self, momentum: float, clip: float) -> None:
        self.reduction.take_momentum(momentum, clip)
        if clip >= 0:
            self.bucket = math.inf  # the norm wants all gradients at once

    def begin(self, gradients: Array) -> None:
        if self.final_until < math.inf:
            self.finish()
        self._gradients, self._end = gradients, gradients.size
        self._buckets.clear()
        self.cut.clear()
        self._size = bucket_size(gradients.size, self.reduction.ranks) if self.bucket is None else self.bucket / 4
        self._lane.begin(self._front_after)

    def ready(self, start: int) -> None:
        for begin in cuts(start, self._end, self._size):
            self._hand_over(begin)

    def finish(self, stop: float = math.inf) -> None:
        self._hand_over(0)
        if not self.overlap:
            stop = math.inf  # all now: ranks that wait for other buckets first would not meet
        wanted = [bucket for bucket in self._buckets if bucket.start < stop and not bucket.summed.is_set()]
        began = time.perf_counter()
        if wanted:
            with self.watchdog.waiting("the sum of the gradients"), self.timeline.span(REDUCE):
                for bucket in wanted:
                    if self.overlap:
                        bucket.summed.wait()
                    else:
                        self._lane.sum(bucket, TRAINING)
        if self._lane.error is not None:
            raise self._lane.error
        if self._sent_along:
            self._arrived, self._sent_along = self._riders.take(), False
            self._front_after = self._arrived[:, 0].max()
        self.reduction.finish()
        self.reduction.raise_failed()
        if not self.reduction.on_device:
            self.exposed += time.perf_counter() - began

    @property
    def final_until(self) -> float:
        return min((bucket.start for bucket in self._buckets if not bucket.summed.is_set()), default=math.inf)

    def wait_for(self, pending: Pending) -> None:
        if not self.reduction.on_device:
            pending.wait()
            return

        def is_done() -> bool:
            self.reduction.raise_failed()
            return pending.done

        with self.watchdog.waiting("the sum of the gradients"):
            wait_until(is_done, by_message=False)

    def state(self) -> State:
        return self.reduction.state()

    def restore_state(self, state: State) -> None:
        self.reduction.restore_state(state)

    def summary(self) -> str:
        if self.reduction.on_device:
            self._lane.seconds, self.exposed = self.reduction.seconds_on_device()
        more = self.reduction.summary()
        if self.on_streams and not self.seconds:  # all were part of CUDA graphs
            return more
        hidden = max(0.0, self.seconds - self.exposed)
        sizes = " + ".join(f"{size / 1e6:.2f}" for size in self.cut)
        buckets = f"{len(self.cut)} buckets of {sizes} MB" if len(self.cut) <= 6 else f"{len(self.cut)} buckets"
        took = f"Sums of gradients took {self.seconds:.2f} s, {hidden:.2f} s of it hidden behind forward and backward"
        return "; ".join(filter(None, (took, buckets, more)))

    def close(self) -> None:
        """Give back the reduction's communicators and memory, the gradients' too. Collective."""
        self._lane.close()

    @property
    def seconds(self) -> float:
        """What the sums have taken so far."""
        return self._lane.seconds

    def _hand_over(self, start: int) -> None:
        """The bucket from `start` to where the last one began."""
        if start >= self._end:
            return
        values = self._gradients[start : self._end]
        if start == 0 and self._sent_along:
            self._riders.put(np.concatenate([[self._lane.best_place], self._numbers]))
            if self._room:
                values = self._buffer[self._room - self._riders.count : self._room + self._end]
        bucket = Bucket(start, values, self.reduction.mark())
        self._buckets.append(bucket)
        self.cut.append(4 * (self._end - start))
        self._end = start
        if not self.overlap:
            return
        if self.on_streams:
            self._lane.sum(bucket, TRAINING)
        else:
            self._lane.put(bucket, front=start == 0)
