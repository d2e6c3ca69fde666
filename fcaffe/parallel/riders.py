"""Riders: numbers of each rank that travel with the gradients, and so cost no message of their own."""

from __future__ import annotations

import numpy as np

from fcaffe.net.blob import Array
from fcaffe.parallel.reductions.reduction import Reduction

PARTS = 3  # float32 that a float64 is split into
ALIGNMENT = 16  # floats: gradients begin at the start of a cache line


class Riders:
    """A block of float32 that ranks sum, with room for the same number of float64 of each rank.

    Each rank writes its own row and zeros into those of the others, so the sum passes on every number as it is,
    whatever the order of additions. Sums of float32 must be exact where all but one are zero. What is beyond float32's
    range becomes infinite or zero.
    """

    def __init__(self, block: np.ndarray, rank: int, ranks: int) -> None:
        self.count = block.size
        self._rows = block.reshape(ranks, PARTS, -1)
        self._rank = rank
        self._buffer: Array | None = None  # the block and the gradients, if they are summed as one

    @classmethod
    def allocate(cls, reduction: Reduction, number: int, gradients: int) -> tuple[Riders, Array]:
        """Riders of `number` numbers a rank, and a zeroed buffer for the gradients with which they travel.

        An exact reduction sums the block as a part of the front bucket: it lies directly before the gradients. Another
        one carries it beside the front bucket.
        """
        size = cls.size(number, reduction.ranks)
        if not reduction.exact:
            block = np.zeros(size, np.float32)
            reduction.carry(block)
            return cls(block, reduction.rank, reduction.ranks), reduction.allocate(gradients)
        start = -(-size // ALIGNMENT) * ALIGNMENT
        buffer = reduction.allocate(start + gradients)
        riders = cls(buffer[start - size : start], reduction.rank, reduction.ranks)
        riders._buffer = buffer[start - size :]
        return riders, buffer[start:]

    @staticmethod
    def size(number: int, ranks: int) -> int:
        """Floats of a block for `number` numbers of each rank."""
        return number * PARTS * ranks

    def with_front(self, bucket: Array) -> Array:
        """What is summed for the front bucket: the block and the bucket, or the bucket alone if these are separate."""
        return bucket if self._buffer is None else self._buffer[: self.count + bucket.size]

    def put(self, numbers: np.ndarray) -> None:
        """Write this rank's float64 numbers, as many as there is room for or fewer."""
        self._rows[...] = 0
        rest = numbers.astype(np.float64)
        for row in self._rows[self._rank]:
            part = row[: len(rest)]
            with np.errstate(over="ignore"):
                part[...] = rest
            rest = np.subtract(rest, part, out=np.zeros_like(rest), where=np.isfinite(part))

    def take(self) -> np.ndarray:
        """After the sum: the numbers of all ranks, (ranks, number) float64."""
        return self._rows.sum(axis=1, dtype=np.float64)
