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
class Event:
    """The sum of a bucket, in seconds from the beginning of the pass."""

    bucket: Bucket
    start: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """Seconds of an iteration: `computing` without sums, its `end` with them, and all sums, hidden or not."""

    computing: float
    end: float
    summing: float
    sums: Sequence[Event] = ()

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
    ready = _ready_at(forward, backward)
    end = ready[-1]
    sums = _queued([(bucket, ready[bucket.after] if overlap else end) for bucket in cut], costs)
    return Outcome(end, max([end, *(one.end for one in sums)]), sum((cost.seconds for cost in costs), 0.0), sums)


def pipelined(
    forward: Sequence[float],
    needs: Sequence[float],
    backward: Sequence[float],
    cut: Sequence[Bucket],
    costs: Sequence[Sum],
    update: float = 0.0,
) -> Outcome:
    """An iteration as fcaffe's ranks on CPUs of several hosts do it, from one backward pass to the next.

    Sums go on behind the next forward pass, until a layer needs parameters that are not updated yet. The last bucket,
    that of the first layers, overtakes those whose sum has not begun, and forward waits for it. Each time a layer needs
    such parameters, all parameters whose gradients are summed are updated.

    Args:
        forward: Seconds of each layer, in the net's order.
        needs: For each layer the offset, in bytes, of the end of the parameters that its forward reads.
        backward: As for `simulate`, likewise `cut`, which has one bucket or more, and `costs`.
        update: Seconds of the whole update.
    """
    ready = _ready_at(0.0, backward)
    now, front = ready[-1], len(cut) - 1
    queue = [(bucket, ready[bucket.after]) for bucket in cut[:front]]
    begun = sum(one.start <= now for one in _queued(queue, costs[:front]))
    order = [*range(begun), front, *range(begun, front)]
    starts = [*queue[:begun], *((cut[number], now) for number in order[begun:])]
    sums = _queued(starts, [costs[number] for number in order])

    total = sum(bucket.bytes for bucket in cut)
    stops = [total - sum(bucket.bytes for bucket in cut[:number]) for number in range(len(cut))]
    ends = [(stops[number] - cut[number].bytes, one.end) for number, one in zip(order, sums, strict=True)]
    updated = 0.0  # bytes, from the front
    for seconds, stop in [(0.0, 1), *zip(forward, needs, strict=True), (0.0, total)]:  # the losses come with the front
        if updated < min(stop, total):
            now = max([now, *(end for start, end in ends if start < stop)])
            until = min((start for start, end in ends if end > now), default=total)
            now, updated = now + update * (until - updated) / total, until
        now += seconds
    computing = sum(forward) + sum(backward) + update
    return Outcome(computing, now, sum((cost.seconds for cost in costs), 0.0), sums)


def _ready_at(now: float, backward: Sequence[float]) -> list[float]:
    """When the backward of each layer ends, if the first begins now."""
    ends = []
    for seconds in backward:
        now += seconds
        ends.append(now)
    return ends


def _queued(ready: Sequence[tuple[Bucket, float]], costs: Sequence[Sum]) -> list[Event]:
    """Sums one after the other, each of a bucket that is ready at a time."""
    events: list[Event] = []
    for (bucket, at), cost in zip(ready, costs, strict=True):
        start = max(at, events[-1].end) if events else at
        events.append(Event(bucket, start, start + cost.seconds))
    return events
