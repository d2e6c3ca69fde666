"""How gradients are cut into buckets as backward finishes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Those of fcaffe/parallel/exchange.py, which needs MPI; tests/plan/test_buckets.py holds the one against the other.
LARGEST, SMALLEST = 4 << 20, 256 << 10


class Bucket(NamedTuple):
    """Bytes of one sum, and after which of the layers, as backward comes by them, it may begin."""

    bytes: int
    after: int


def buckets(total: int, final_from: Iterable[int], size: float | None = None) -> Iterator[Bucket]:
    """The buckets of `total` bytes of gradients, which after one layer's backward after the other are final from these
    bytes on. `size` in bytes; None: 4 MiB, or as much as is still to come, but no less than 256 KiB."""
    end, last = total, 0
    full = LARGEST if size is None else size
    for last, start in enumerate(final_from):
        held = end - start
        if held > 0 and (held >= full or (size is None and held >= max(start, SMALLEST))):
            yield Bucket(held, last)
            end = start
    if end > 0:
        yield Bucket(end, last)


def whole(total: int, final_from: Iterable[int]) -> Iterator[Bucket]:
    """All gradients in one sum."""
    return buckets(total, final_from, math.inf)
