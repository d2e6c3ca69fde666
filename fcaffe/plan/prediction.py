"""Predictions: the time of an iteration on any number of workers, and what follows from it.

An iteration is simulated event by event: backward finishes layers, buckets are summed one after the other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fcaffe.parallel.sizes import bucket_size, cuts
from fcaffe.plan.machine import TEXTBOOK, Machine
from fcaffe.plan.reductions import COMPARED, sum_of
from fcaffe.plan.work import Compute, Work, compute_of

MOST_WORKERS = 1 << 20  # among which the crossover is searched
ACCESSES = 3  # of weights and each history: the gradient is read, they are read and written


class Bucket(NamedTuple):
    """Bytes of one sum, and the index of the layer, in the order of backward, after which it may begin."""

    bytes: int
    after: int


def buckets(total: int, final_from: Iterable[int], ranks: int, size: float | None = None) -> Iterator[Bucket]:
    """Cut gradients into buckets.

    Args:
        total: Bytes of all gradients.
        final_from: For each layer, in the order of backward, the offset from which gradients are final after it.
        ranks: Number of ranks, for fcaffe's rule.
        size: Bytes of a bucket; None for fcaffe's rule.
    """
    end = total // 4
    full = bucket_size(end, ranks) if size is None else size / 4
    last = 0
    for last, start in enumerate(final_from):
        for begin in cuts(start // 4, end, full):
            yield Bucket(4 * (end - begin), last)
            end = begin
    if end > 0:
        yield Bucket(4 * end, last)


def exposed(
    forward: float, backward: Sequence[float], cut: Sequence[Bucket], costs: Sequence[float], overlap: bool = True
) -> float:
    """The seconds that the sums of gradients add to a pass forward and backward.

    Args:
        forward: Seconds of the forward pass.
        backward: Seconds of each layer, in the order of backward; `Bucket.after` is an index of it.
        cut: The buckets, in the order in which they become ready.
        costs: Seconds of the sum of each bucket.
        overlap: Whether a bucket is summed as soon as it is ready and those before it are summed. Without, all sums
            come after backward.
    """
    ready, end = [], forward
    for seconds in backward:
        end += seconds
        ready.append(end)
    summed = end if not overlap else 0.0
    for bucket, cost in zip(cut, costs, strict=True):
        summed = max(ready[bucket.after], summed) + cost
    return max(0.0, summed - end)


@dataclass(frozen=True)
class Row:
    """Seconds of one iteration on this many workers."""

    workers: int
    reduce: str
    batch: int
    share: int
    compute: float
    exposed: float
    data: float
    update: float
    communication: float  # all sums, hidden or not
    speedup: float
    passes: Compute

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed + self.data + self.update

    @property
    def efficiency(self) -> float:
        return self.speedup / self.workers

    @property
    def images_per_second(self) -> float:
        return self.batch / self.seconds


@dataclass(frozen=True)
class Prediction:
    """Predictions for a net on a machine, and how it is trained."""

    work: Work
    machine: Machine
    batch: int  # samples of a pass, which the workers split
    per_worker: bool = False  # each worker has such a batch of its own instead
    math: str = "fp32"  # the type of factors
    overlap: bool = True  # sums go on during backward
    bucket: float | None = None  # bytes; None: fcaffe's rule
    epochs: float | None = None  # of `images`
    images: int | None = None  # of the training set
    hybrid: bool = False  # weights are split (--parallel hybrid)

    def work_on(self, workers: int) -> Work:
        return self.work.split(workers, self.batch) if self.hybrid and workers > 1 else self.work

    def share(self, workers: int) -> int:
        """Samples of the worker with the most. More workers than samples leave some without any."""
        return self.batch if self.per_worker else -(-self.batch // workers)

    def batch_of(self, workers: int) -> int:
        """All samples of an iteration."""
        return self.work.passes * self.batch * (workers if self.per_worker else 1)

    def cut(self, workers: int) -> Sequence[Bucket]:
        """The sums of an iteration. Books sum all gradients at once where there is nothing to overlap."""
        at_once = not self.overlap and self.bucket is None and self.machine.exchange == TEXTBOOK
        work = self.work_on(workers)
        final = [layer.final_from for layer in reversed(work.layers)]
        return list(buckets(work.gradient_bytes, final, workers, math.inf if at_once else self.bucket))

    def row(self, workers: int, name: str) -> Row:
        """Raises UsageError for a reduction that does not fit."""
        found = self._row(workers, name)
        alone = found if workers == 1 else self._row(1, name)
        return replace(found, speedup=found.images_per_second / alone.images_per_second)

    def best(self, workers: int) -> Row:
        """The row of the fastest reduction."""
        return min(self.rows([workers], COMPARED), key=lambda row: float(f"{row.seconds:.9g}"))

    def rows(self, counts: Sequence[int], names: Iterable[str]) -> list[Row]:
        """For each number of workers the row of each reduction; `best` is the fastest, `all` are those compared."""
        each = [one for name in names for one in (COMPARED if name == "all" else (name,))]
        return [
            self.best(workers) if name == "best" else self.row(workers, name) for workers in counts for name in each
        ]

    def crossover(self, name: str) -> int | None:
        """The smallest number of workers whose sums take longer than their computing; None: none up to a million. Sums
        grow and computing shrinks, so a bisection finds it, but for steps at powers of two."""

        def overtaken(workers: int) -> bool:
            row = self._row(workers, name)
            return row.communication > row.compute

        numbers = range(2, MOST_WORKERS + 1)
        index = bisect_left(numbers, True, key=overtaken)
        return numbers[index] if index < len(numbers) else None

    def memory(self, row: Row) -> dict[str, float]:
        """Bytes that a worker needs."""
        parameters = float(self.work_on(row.workers).parameter_bytes)
        parts = {
            "weights": parameters,
            "gradients": parameters,
            "histories": self.work.histories * parameters,
            "activations": self.work.activations * row.share * (0.5 if self.math in ("fp16", "bf16") else 1.0),
        }
        return {**parts, "total": sum(parts.values())}

    def hours(self, row: Row) -> float | None:
        """Of the training: its epochs, or the solver's iterations."""
        if self.epochs is not None and self.images is not None:
            return self.epochs * self.images / row.images_per_second / 3600
        if self.work.iterations is not None:
            return self.work.iterations * row.seconds / 3600
        return None

    def _row(self, workers: int, name: str) -> Row:
        share, cut = self.share(workers), self.cut(workers) if workers > 1 else []
        work = self.work_on(workers)
        passes = compute_of(work, self.machine, self.math, share)
        costs = [sum_of(name, self.machine, workers, bucket.bytes) for bucket in cut]
        blobs = work.passes * sum(sum_of("ring", self.machine, workers, size) for size in work.blobs)
        sums = exposed(sum(passes.forward), passes.backward[::-1], cut, costs, self.overlap) + blobs
        compute, update = self.work.passes * passes.seconds, self.update(workers)
        return Row(
            workers=workers,
            reduce=name,
            batch=self.batch_of(workers),
            share=share,
            compute=compute,
            exposed=sums,
            data=max(0.0, self.reading(workers) - (compute + sums + update)),
            update=update,
            communication=sum(costs) + blobs,
            speedup=1.0,
            passes=passes,
        )

    def update(self, workers: int) -> float:
        """Seconds of the update; the known speed of a net includes it."""
        if self.machine.speed_of(self.work.name):
            return 0.0
        moved = self.work_on(workers).parameter_bytes * (ACCESSES + 2 * self.work.histories)
        return moved / self.machine.device.memory_bandwidth

    def reading(self, workers: int) -> float:
        """Seconds that reading the batch takes, beside everything else."""
        machine, share = self.machine, self.work.passes * self.share(workers)
        own = share / machine.read_images if machine.read_images else 0.0
        together = self.batch_of(workers) / machine.read_images_in_all if machine.read_images_in_all else 0.0
        return max(own, together)
