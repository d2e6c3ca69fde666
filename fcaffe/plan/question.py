"""What a plan is asked: a net, its batch and its exchange of gradients, on a machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fcaffe.errors import UsageError
from fcaffe.parallel.sizes import bucket_size, cuts
from fcaffe.plan.machine import TEXTBOOK, Machine
from fcaffe.plan.work import Work


class Bucket(NamedTuple):
    """Bytes of one sum, and the index of the layer, in the order of backward, after which it may begin."""

    bytes: int
    after: int


@dataclass(frozen=True)
class Question:
    """A net on a machine, and how it is trained.

    Attributes:
        work: The net.
        machine: The machine.
        batch: Samples of an iteration's pass, which the workers split.
        per_worker: Whether each worker has a batch of its own instead.
        math: The type of factors.
        overlap: Whether sums go on during backward.
        bucket: Bytes of a bucket; None for fcaffe's rule.
        spread: Relative standard deviation of the workers' speeds.
        epochs: Epochs of the training, of `images`.
        images: Images of the training set.
        wanted: The efficiency for which the batch is searched.
    """

    work: Work
    machine: Machine
    batch: int
    per_worker: bool = False
    math: str = "fp32"
    overlap: bool = True
    bucket: float | None = None
    spread: float = 0.0
    epochs: float | None = None
    images: int | None = None
    wanted: float = 0.9

    def share(self, workers: int) -> int:
        """Samples of the worker with the most. More workers than samples leave some without any."""
        return self.batch if self.per_worker else -(-self.batch // workers)

    def batch_of(self, workers: int) -> int:
        """All samples of an iteration."""
        return self.work.passes * self.batch * (workers if self.per_worker else 1)

    def cut(self, workers: int) -> Sequence[Bucket]:
        """The sums of an iteration. Books sum all gradients at once where there is nothing to overlap."""
        at_once = not self.overlap and self.bucket is None and self.machine.exchange == TEXTBOOK
        final = [layer.final_from for layer in reversed(self.work.layers)]
        return list(buckets(self.work.gradient_bytes, final, workers, math.inf if at_once else self.bucket))


def buckets(total: int, final_from: Iterable[int], ranks: int, size: float | None = None) -> Iterator[Bucket]:
    """Cut gradients into buckets, as a training on so many ranks does.

    Args:
        total: Bytes of all gradients.
        final_from: For each layer, in the order of backward, the byte from which on gradients are final after it.
        ranks: Number of ranks.
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


def check(question: Question) -> None:
    """Raises UsageError for what cannot be planned."""
    if question.batch < 1:
        raise UsageError(f"--batch {question.batch}: a batch has one sample or more")
    question.machine.device.peak_of(question.math)
