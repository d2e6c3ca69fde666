"""Which part of a global batch a worker reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Samples `first` to `first + count - 1` of a batch of `total`."""

    first: int
    count: int
    total: int


def split_batch(total: int, rank: int, size: int) -> Share:
    """The share of worker `rank` of `size`: contiguous, in the order of ranks, and even to within one sample."""
    even, extra = divmod(total, size)
    return Share(rank * even + min(rank, extra), even + (rank < extra), total)


@dataclass(frozen=True)
class Turns:
    """Whole batches dealt out in turns: of each `period` batches this worker reads every `size`-th, from batch `rank`
    on.

    So workers share a test: each runs whole batches, as one worker alone would.
    """

    rank: int = 0
    size: int = 1
    period: int = 1

    def mine(self, batch: int) -> bool:
        """Whether batch number `batch`, counted from the first of the first pass, is this worker's."""
        return batch % self.period % self.size == self.rank

    def skipped_after(self, batch: int) -> int:
        """How many batches behind this one go by unread before the next of this worker's, or before the pass ends."""
        following = batch + 1
        while following % self.period and not self.mine(following):
            following += 1
        return following - batch - 1

    def skipped_before(self, batch: int) -> int:
        """How many batches from this one on go by unread before the first of this worker's."""
        skipped = 0
        while not self.mine(batch + skipped):
            skipped += 1
        return skipped
