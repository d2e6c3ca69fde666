"""One iteration of a worker, event by event: backward finishes layers, buckets are summed one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fcaffe.parallel.sizes import bucket_size, cuts
from fcaffe.plan.reductions import Sum


class Bucket(NamedTuple):
    """Bytes of one sum, and the index of the layer, in the order of backward, after which it may begin."""

    bytes: int
    after: int


def buckets(total: int, final_from: Iterable[int], ranks: int, size: float | None = None) -> Iterator[Bucket]:
    """Cut `total` bytes of gradients into buckets, of `size` bytes or by fcaffe's rule for so many ranks. `final_from`:
    for each layer, in the order of backward, the byte from which on gradients are final after it."""
    end = total // 4
    full = bucket_size(end, ranks) if size is None else size / 4
    last = 0
    for last, start in enumerate(final_from):
        for begin in cuts(start // 4, end, full):
            yield Bucket(4 * (end - begin), last)
            end = begin
    if end > 0:
        yield Bucket(4 * end, last)


@dataclass(frozen=True)
class Outcome:
    """Seconds of an iteration: `computing` without sums, its `end` with them, and all sums, hidden or not."""

    computing: float
    end: float
    summing: float

    @property
    def exposed(self) -> float:
        """What the sums add to the computing."""
        return max(0.0, self.end - self.computing) if self.summing else 0.0


def simulate(
    forward: float, backward: Sequence[float], cut: Sequence[Bucket], costs: Sequence[Sum], overlap: bool = True
) -> Outcome:
    """A pass forward and backward, and the sums of its gradients.

    Args:
        forward: Seconds of the forward pass.
        backward: Seconds of each layer, in the order of backward; `Bucket.after` is an index of it.
        cut: The buckets, in the order in which they become ready.
        costs: The sum of each bucket.
        overlap: Whether a bucket is summed as soon as it is ready and those before it are summed. Without, all sums
            come after backward.
    """
    ready, end = [], forward
    for seconds in backward:
        end += seconds
        ready.append(end)
    summed = 0.0
    for bucket, cost in zip(cut, costs, strict=True):
        summed = max(ready[bucket.after] if overlap else end, summed) + cost.seconds
    return Outcome(end, max(end, summed), sum((cost.seconds for cost in costs), 0.0))
