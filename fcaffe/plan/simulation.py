"""One iteration of a worker, event by event: backward finishes layers, buckets are summed one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fcaffe.plan.buckets import Bucket
from fcaffe.plan.reductions import Sum


@dataclass(frozen=True)
class Event:
    """What took place from `start` to `end`, in seconds from the beginning of the pass."""

    what: str
    start: float
    end: float


@dataclass
class Outcome:
    """Seconds of a pass and its sums: `computing` if nothing had come between, the end of backward, the end of all.
    `summing`: how long all sums took, hidden or not."""

    computing: float
    backward_end: float
    end: float
    summing: float
    events: list[Event] = field(default_factory=list)

    @property
    def exposed(self) -> float:
        """What the sums add to the computing."""
        return max(0.0, self.end - self.computing) if self.summing else 0.0


def simulate(
    forward: float,
    backward: Sequence[float],
    cut: Sequence[Bucket],
    sum_of: Callable[[int], Sum],
    overlap: bool = True,
    busy: float = 0.0,
) -> Outcome:
    """`backward` has the seconds of the layers in the order in which backward comes by them, to which `after` of the
    buckets refers. With `overlap` a bucket is summed as soon as it is ready and those before it are through; without,
    all are after backward. `busy`: the share of a core's time for sums that is taken from computing, which otherwise
    has all cores."""
    costs = [sum_of(bucket.bytes) for bucket in cut]
    exchange = _Exchange(busy)
    now, waiting = forward, 0
    for index, seconds in enumerate(backward):
        now = exchange.compute(now, seconds)
        while overlap and waiting < len(cut) and cut[waiting].after == index:
            exchange.sum(now, cut[waiting], costs[waiting])
            waiting += 1
    backward_end = now
    for bucket, cost in zip(cut[waiting:], costs[waiting:], strict=True):
        exchange.sum(now, bucket, cost)
    return Outcome(
        computing=forward + sum(backward),
        backward_end=backward_end,
        end=max(backward_end, exchange.free),
        summing=sum((cost.seconds for cost in costs), 0.0),
        events=[Event("forward", 0.0, forward), Event("backward", forward, backward_end), *exchange.events],
    )


class _Exchange:
    """Sums, one after the other, and what they take from a worker that computes meanwhile."""

    def __init__(self, busy: float) -> None:
        self.busy = busy
        self.free = 0.0
        self.events: list[Event] = []
        self._shares: list[float] = []  # of a core, during each event
        self._first = 0  # event that may still be under way

    def sum(self, ready: float, bucket: Bucket, cost: Sum) -> None:
        start = max(ready, self.free)
        self.free = start + cost.seconds
        if cost.seconds:
            self.events.append(Event(f"sum of {bucket.bytes:,} bytes", start, self.free))
            self._shares.append(min(0.9, self.busy * cost.cpu / cost.seconds))

    def compute(self, now: float, seconds: float) -> float:
        """When what takes so many seconds of a core ends, if it begins now."""
        while self._first < len(self.events) and seconds > 0:
            event, left = self.events[self._first], 1.0 - self._shares[self._first]
            if event.start > now:  # sums follow one another, so this is a gap before the first
                free = min(seconds, event.start - now)
                now, seconds = now + free, seconds - free
                continue
            done = max(0.0, (event.end - now) * left)
            if done >= seconds:
                return now + seconds / left
            now, seconds = max(now, event.end), seconds - done
            self._first += 1
        return now + seconds
