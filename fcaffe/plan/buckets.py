"""How gradients are cut into buckets as backward finishes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fcaffe.parallel.buckets import bucket_size, cuts


class Bucket(NamedTuple):
    """Bytes of one sum, and after which of the layers, as backward comes by them, it may begin."""

    bytes: int
    after: int


def buckets(total: int, final_from: Iterable[int], ranks: int, size: float | None = None) -> Iterator[Bucket]:
    """The buckets of `total` bytes of gradients, which after one layer's backward after the other are final from these
    bytes on. `size` in bytes; None: what a training on so many ranks takes that is told none."""
    end = total // 4
    full = bucket_size(end, ranks) if size is None else size / 4
    last = 0
    for last, start in enumerate(final_from):
        for begin in cuts(start // 4, end, full):
            yield Bucket(4 * (end - begin), last)
            end = begin
    if end > 0:
        yield Bucket(4 * end, last)


def whole(total: int, final_from: Iterable[int]) -> Iterator[Bucket]:
    """All gradients in one sum."""
    return buckets(total, final_from, 1, math.inf)
