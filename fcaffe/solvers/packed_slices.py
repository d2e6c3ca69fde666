"""PackedSlices: some slices of a flat buffer, one after the other in a buffer of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate


class PackedSlices:
    """The slices of a flat buffer of `size` values that lie between `excluded` ones, which are in order.

        flat buffer      [ a a a  w w w w  b b ]      w is excluded
        packed buffer    [ a a a  b b ]

    Attributes:
        slices: The slices in the flat buffer.
        count: The size of the packed buffer.
    """

    def __init__(self, size: int, excluded: Sequence[slice] = ()) -> None:
        starts = [0, *(part.stop for part in excluded)]
        stops = [*(part.start for part in excluded), size]
        self.slices = [slice(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]
        self._starts = [0, *accumulate(part.stop - part.start for part in self.slices)]
        self.count = self._starts[-1]

    def offset(self, flat: int) -> int:
        """The packed offset of the first packed value at or behind this offset of the flat buffer."""
        return sum(max(min(part.stop, flat) - part.start, 0) for part in self.slices)

    def blocks(self, start: int, stop: int, size: int) -> Iterator[tuple[slice, slice]]:
        """Yield the packed values from offset `start` to `stop` of the flat buffer, in blocks of at most `size` values.

        Each block is given as its slice of the flat buffer and its slice of the packed one.
        """
        for part, packed in zip(self.slices, self._starts, strict=False):
            for first in range(max(part.start, start), min(part.stop, stop), size):
                end = min(first + size, part.stop, stop)
                moved = packed - part.start
                yield slice(first, end), slice(first + moved, end + moved)
