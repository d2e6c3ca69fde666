"""Message sizes: how gradients are cut into buckets and segments, and which reduction suits a buffer.

`fcaffe plan` follows these rules too, so this module needs no MPI.
"""

from __future__ import annotations

PARTS = 4  # buckets of a small net whose layers are alike
SMALLEST = (128 << 10) // 4  # floats in a bucket for each rank: with fewer, messages cost more than overlap saves
LARGEST = (4 << 20) // 4  # floats in a bucket, beyond which a longer one makes no difference

SEGMENTS = 8  # of a long buffer in a tree
SHORTEST, LONGEST = 1 << 17, 1 << 20  # floats of a segment; with shorter ones ranks that share a core wait too often

LONG_MESSAGE = 1 << 16  # bytes whose transfer takes much longer than the latency
SHORT_MESSAGE = 1 << 14  # bytes whose transfer takes much less than the latency


def bucket_size(count: int, ranks: int) -> float:
    """Default number of floats of a bucket, for `count` gradients in all."""
    return min(max(count / PARTS, SMALLEST * ranks), LARGEST)


def cuts(start: int, end: int, size: float) -> list[int]:
    """The offsets at which the next buckets begin, once the gradients from `start` to `end` are final.

    Empty if fewer than `size` gradients are final; a layer of several times `size` is cut into several buckets. The
    bucket that begins at 0 waits for the end of backward.
    """
    number = int((end - start) / max(size, 1)) if start else 0
    return [end - (end - start) * part // number for part in range(1, number + 1)]


def segment_length(count: int) -> int:
    """Floats of each segment but the last, in which a tree sums a buffer of `count`."""
    return min(max(count // SEGMENTS, SHORTEST), LONGEST, count)


def segments_ahead(ranks: int) -> int:
    """Segments that a rank of a tree sends up before it waits for the first one to come down: a way up and down."""
    return 2 * ranks.bit_length()


def best_reduction(ranks: int, nbytes: int) -> tuple[str, str]:
    """(name, why) of the reduction for a buffer of so many bytes, on hosts of one rank each."""
    if nbytes // ranks >= LONG_MESSAGE:
        return "ring", f"every rank sends the least, and its messages of {nbytes // ranks} bytes are long ones"
    if nbytes <= SHORT_MESSAGE:
        return "doubling", f"it takes the fewest messages, which is what counts for {nbytes} bytes"
    return "halving", f"it takes few messages, which counts most for {nbytes} bytes and {ranks} ranks"
