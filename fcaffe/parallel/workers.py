"""The other workers, as nets and solvers see them, over MPI."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from fcaffe.net.blob import Array
from fcaffe.net.workers import Workers
from fcaffe.parallel.reductions.reduction import Reduction
from fcaffe.parallel.waiting import wait_until
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.timeline import WAIT, Timeline


class MpiWorkers(Workers):
    """One worker per rank of a communicator, which is duplicated so that its messages do not mix with others.

    A prototxt's batch_size is the batch of all workers together, or with `per_worker` the batch of each. On GPUs the
    `reduction` of the gradients also adds up small arrays if it queues its sums on streams.
    """

    def __init__(
        self,
        comm: Any,
        per_worker: bool = False,
        watchdog: Watchdog | None = None,
        timeline: Timeline | None = None,
        reduction: Reduction | None = None,
    ) -> None:
        self.comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.per_worker = per_worker
        self.watchdog = watchdog or Watchdog()
        self.timeline = timeline or Timeline()
        self.reduction = reduction
        self.sums_on_streams = reduction is not None and not reduction.host_waits

    def sum_array(self, values: Array) -> Array:
        """Arrays of a GPU are copied to the host and back, since not every MPI reads a GPU's memory, unless the
        reduction adds them up on the GPU."""
        if hasattr(values, "get"):  # as arrays of CuPy have
            total = values.copy(order="C")
            if self.reduction is not None and self.sums_on_streams and values.dtype == np.float32:
                self.reduction.sum(total.reshape(-1))
            else:
                total.set(self.sum_array(values.get()))
            return total
        return super().sum_array(values)

    def gather_array(self, values: Array) -> Array:
        """On a GPU each rank adds its values to zeros, which is exact in every order."""
        everyones = np.zeros_like(values, shape=(self.size, *values.shape), order="C")
        if hasattr(values, "get"):
            everyones[self.rank] = values
            return self.sum_array(everyones)
        with self._waiting("small arrays of all workers"):
            request = self.comm.Iallgather(np.ascontiguousarray(values), everyones)
            wait_until(request.Test)
        return everyones

    def swap(self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """Arrays of a GPU are copied to the host and back."""
        sent = np.concatenate([(part.get() if hasattr(part, "get") else part).reshape(-1) for part in parts])
        sizes = [prod(shape) for shape in shapes]
        received = np.empty(sum(sizes), sent.dtype)
        with self._waiting("parts of all workers"):
            request = self.comm.Ialltoallv([sent, [part.size for part in parts]], [received, sizes])
            wait_until(request.Test)
        rows = np.split(received, np.cumsum(sizes)[:-1])
        found = [row.reshape(shape) for row, shape in zip(rows, shapes, strict=True)]
        if not hasattr(parts[0], "get"):
            return found
        on_device = [np.empty_like(parts[0], shape=shape) for shape in shapes]
        for array, values in zip(on_device, found, strict=True):
            array.set(values)
        return on_device

    def broadcast(self, array: Array) -> None:
        if hasattr(array, "get"):
            host = array.get()
            self.broadcast(host)
            array.set(host)
            return
        with self._waiting("a broadcast"):
            self.comm.Bcast(array, 0)

    def broadcast_object(self, thing: Any) -> Any:
        with self._waiting("a broadcast"):
            return self.comm.bcast(thing, 0)

    def gather(self, thing: Any) -> list[Any] | None:
        with self._waiting("a gathering"):
            return self.comm.gather(thing, 0)

    def close(self) -> None:
        self.comm.Free()

    @contextlib.contextmanager
    def _waiting(self, operation: str) -> Iterator[None]:
        with self.watchdog.waiting(operation), self.timeline.span(WAIT):
            yield
