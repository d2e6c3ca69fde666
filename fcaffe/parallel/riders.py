"""Numbers of each rank that travel with the gradients, and so cost no message of their own."""

from __future__ import annotations

import numpy as np

PARTS = 3  # float32 that a float64 is cut into


class Riders:
    """A part of a buffer that ranks sum: `number` numbers of each rank.

    Each rank writes a row of its own and zeros into those of the others, so the sum hands every number on as it is,
    whatever the order of additions. It takes sums of float32 that are exact where all but one are zero. What is beyond
    float32's range becomes infinite or zero.
    """

    def __init__(self, part: np.ndarray, rank: int, ranks: int) -> None:
        self.count = part.size
        self._rows = part.reshape(ranks, PARTS, -1)
        self._rank = rank

    @staticmethod
    def size(number: int, ranks: int) -> int:
        """The floats that the part must have."""
        return number * PARTS * ranks

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
