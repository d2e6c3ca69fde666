"""What a plan is asked for: a net, its batch and its exchange, on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fcaffe.errors import UsageError
from fcaffe.plan.buckets import Bucket, buckets, whole
from fcaffe.plan.machine import TEXTBOOK, Machine
from fcaffe.plan.work import Work


@dataclass(frozen=True)
class Question:
    """What is asked: a net on a machine. `batch` samples are an iteration's batch, which workers split, or with
    `per_worker` each one's; without `passes` of several. `spread`: relative standard deviation of the workers' speeds.
    `bucket` in bytes; None: fcaffe's rule. `epochs` of `images`, if the time of a training is asked for. Buckets within
    the `first` bytes, and the one in front, go in 16 bits; 0: none does."""

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
    first: float = 0.0

    def share(self, workers: int) -> int:
        """Samples of the worker with the most. More workers than samples leave some without any."""
        return self.batch if self.per_worker else -(-self.batch // workers)

    def batch_of(self, workers: int) -> int:
        """All samples of an iteration."""
        return self.work.passes * self.batch * (workers if self.per_worker else 1)

    def cut(self, workers: int) -> Sequence[Bucket]:
        """The sums of an iteration. Books sum all gradients at once where there is nothing to overlap."""
        final = [layer.final_from for layer in reversed(self.work.layers)]
        total = self.work.gradient_bytes
        at_once = not self.overlap and self.bucket is None and self.machine.exchange == TEXTBOOK
        return list(whole(total, final) if at_once else buckets(total, final, workers, self.bucket))


def check(question: Question) -> None:
    """Raises UsageError for what cannot be planned."""
    if question.batch < 1:
        raise UsageError(f"--batch {question.batch}: a batch has one sample or more")
    question.machine.device.peak_of(question.math)
