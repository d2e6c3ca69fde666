"""Workers that are threads of one process, so that hundreds of trainings on several workers take a minute."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fcaffe.net.exchange import GradientExchange
from fcaffe.net.workers import Workers


class Meeting:
    """What the threads of one job share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._given: list[Any] = [None] * size

    def gather(self, rank: int, thing: Any) -> list[Any]:
        """The things of all ranks. Raises BrokenBarrierError if one of them has ended."""
        self._given[rank] = thing
        self._barrier.wait(60)
        everyones = list(self._given)
        self._barrier.wait(60)
        return everyones

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        """Its body is a rank's. An error in it ends the others' waiting."""
        try:
            yield
        except BaseException:
            self._barrier.abort()
            raise


class ThreadWorkers(Workers):
    """The worker of one thread."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def gather_array(self, values: Any) -> Any:
        everyones = self.meeting.gather(self.rank, np.array(values))
        assert len({array.shape for array in everyones}) == 1, [array.shape for array in everyones]
        return np.stack(everyones)

    def broadcast(self, array: Any) -> None:
        array[...] = self.meeting.gather(self.rank, array.copy())[0]

    def broadcast_object(self, thing: Any) -> Any:
        return self.meeting.gather(self.rank, thing)[0]

    def gather(self, thing: Any) -> list[Any] | None:
        everyones = self.meeting.gather(self.rank, thing)
        return everyones if self.rank == 0 else None


class ThreadExchange(GradientExchange):
    """Sums the gradients of all threads when all are there."""

    on_streams = False

    def __init__(self, workers: ThreadWorkers) -> None:
        self._workers, self._gradients = workers, np.empty(0)

    def begin(self, gradients: np.ndarray) -> None:
        self._gradients = gradients

    def finish(self, stop: float = 0) -> None:
        if self._gradients.size:
            self._gradients[...] = self._workers.sum_array(self._gradients)
        self._gradients = np.empty(0)


def on_ranks(size: int, work: Callable[[ThreadWorkers], Any]) -> list[Any]:
    """Run `work` on so many workers. Returns the results by rank, or raises the error of the first that failed."""
    meeting = Meeting(size)

    def rank(number: int) -> Any:
        with meeting.attending():
            return work(ThreadWorkers(meeting, number))

    with ThreadPoolExecutor(size) as pool:
        pending = [pool.submit(rank, number) for number in range(size)]
    errors = [one.exception() for one in pending]
    for error in sorted(filter(None, errors), key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    return [one.result() for one in pending]
