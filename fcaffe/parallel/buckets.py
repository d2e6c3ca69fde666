"""Where the flat gradients are cut into buckets, as backward finishes them from the end to the front."""

from __future__ import annotations

PARTS = 4  # buckets of a small net, if its layers were alike
SMALLEST = (128 << 10) // 4  # values in a bucket for each rank: with fewer, messages cost more than overlap spares
LARGEST = (4 << 20) // 4  # values in a bucket, beyond which more at once make no difference


def bucket_size(count: int, ranks: int) -> float:
    """How many values make a bucket of `count` gradients, where nobody has said it."""
    return min(max(count / PARTS, SMALLEST * ranks), LARGEST)


def cuts(start: int, end: int, size: float) -> list[int]:
    """The offsets at which the next buckets begin, when those before `end` are left and all from `start` on are final.

    There are none before there is enough for one; a layer of several times `size` makes as many. What begins at 0 is
    left for the end of backward.
    """
    number = int((end - start) / max(size, 1)) if start else 0
    return [end - (end - start) * part // number for part in range(1, number + 1)]
