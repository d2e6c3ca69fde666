"""The part of a global batch that a worker reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Samples `first` to `first + count - 1` of a batch of `total`."""

    first: int
    count: int
    total: int


def split_batch(total: int, rank: int, size: int) -> Share:
    """The share of worker `rank` of `size`. Shares are contiguous, in rank order, and differ by at most one sample."""
    even, extra = divmod(total, size)
    return Share(rank * even + min(rank, extra), even + (rank < extra), total)


@dataclass(frozen=True)
class Turns:
    """Round-robin of whole batches: of each `period` batches this worker reads every `size`-th, beginning with `rank`.

    So workers share a test, in which each runs whole batches.
    """

    rank: int = 0
    size: int = 1
    period: int = 1

    def mine(self, batch: int) -> bool:
        """Whether this worker reads batch number `batch`, counted from the first batch of the first pass."""
        return batch % self.period % self.size == self.rank

    def skipped_after(self, batch: int) -> int:
        """The number of batches after this one to skip, up to this worker's next batch or the end of the pass."""
        following = batch + 1
        while following % self.period and not self.mine(following):
            following += 1
        return following - batch - 1

    def skipped_before(self, batch: int) -> int:
        """The number of batches from this one on to skip, up to this worker's next batch."""
        skipped = 0
        while not self.mine(batch + skipped):
            skipped += 1
        return skipped
