"""One iteration of a worker, event by event: backward finishes layers, buckets are summed one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fcaffe.plan.question import Bucket
from fcaffe.plan.rounds import Sum


@dataclass(frozen=True)
class Event:
    """What took place from `start` to `end`, in seconds from the beginning of the pass."""

    what: str
    start: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """Seconds of an iteration.

    Attributes:
        computing: The iteration without sums.
        backward_end: The end of backward.
        end: The end of the iteration.
        summing: All sums, hidden or not.
        events: What took place, in order.
    """

    computing: float
    backward_end: float
    end: float
    summing: float
    events: Sequence[Event] = ()

    @property
    def exposed(self) -> float:
        """What the sums add to the computing."""
        return max(0.0, self.end - self.computing) if self.summing else 0.0


def simulate(
    forward: float, backward: Sequence[float], cut: Sequence[Bucket], costs: Sequence[Sum], overlap: bool = True
) -> Outcome:
    """An iteration whose update waits for all sums.

    Args:
        forward: Seconds of the forward pass.
        backward: Seconds of each layer, in the order of backward; `Bucket.after` is an index of it.
        cut: The buckets, in the order in which they become ready.
        costs: The sum of each bucket.
        overlap: Whether a bucket is summed as soon as it is ready and those before it are summed. Without, all sums
            come after backward.
    """
    sums = _Sums()
    now, waiting = forward, 0
    for index, seconds in enumerate(backward):
        now += seconds
        while overlap and waiting < len(cut) and cut[waiting].after == index:
            sums.add(now, cut[waiting], costs[waiting])
            waiting += 1
    for bucket, cost in zip(cut[waiting:], costs[waiting:], strict=True):
        sums.add(now, bucket, cost)
    events = [Event("forward", 0.0, forward), Event("backward", forward, now), *sums.events]
    return Outcome(now, now, max(now, sums.end), _summing(costs), events)


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
    sums, front = _Sums(), len(cut) - 1
    now, ready = 0.0, 0
    for index, seconds in enumerate(backward):
        now += seconds
        while ready < front and cut[ready].after == index:
            sums.add(now, cut[ready], costs[ready])
            ready += 1
    backward_end = now
    begun = sums.drop_waiting(now)
    order = [*range(begun), front, *range(begun, front)]
    for number in order[begun:]:
        sums.add(now, cut[number], costs[number])
    updating = _Updating(cut, dict(zip(order, sums.events, strict=True)), update)
    now = updating.need(1, now)  # the losses come with the front bucket
    for seconds, stop in zip(forward, needs, strict=True):
        now = updating.need(stop, now) + seconds
    end = updating.need(updating.total, now)
    events = [Event("backward", 0.0, backward_end), *sums.events, Event("update, forward", backward_end, end)]
    return Outcome(sum(forward) + sum(backward) + update, backward_end, end, _summing(costs), events)


def _summing(costs: Sequence[Sum]) -> float:
    return sum((cost.seconds for cost in costs), 0.0)


class _Updating:
    """An update that follows the sums. `sums` has the sum of each bucket of `cut`, by its number."""

    def __init__(self, cut: Sequence[Bucket], sums: Mapping[int, Event], seconds: float) -> None:
        self.total = sum(bucket.bytes for bucket in cut)
        self.seconds = seconds
        self._updated = 0.0  # bytes, from the front
        self._ends: list[tuple[float, float]] = []  # of each bucket its start, and when it is summed
        start = self.total
        for number, bucket in enumerate(cut):
            start -= bucket.bytes
            self._ends.append((start, sums[number].end))

    def need(self, stop: float, now: float) -> float:
        """When the parameters before byte `stop` are updated, if they are needed now."""
        if self._updated >= min(stop, self.total):
            return now
        now = max([now, *(end for start, end in self._ends if start < stop)])
        until = min((start for start, end in self._ends if end > now), default=self.total)
        share, self._updated = (until - self._updated) / self.total, until
        return now + share * self.seconds


class _Sums:
    """Sums, one after the other."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def end(self) -> float:
        return self.events[-1].end if self.events else 0.0

    def add(self, ready: float, bucket: Bucket, cost: Sum) -> None:
        start = max(ready, self.end)
        self.events.append(Event(f"sum of {bucket.bytes:,} bytes", start, start + cost.seconds))

    def drop_waiting(self, now: float) -> int:
        """Drop the sums that have not begun by now; returns how many have."""
        self.events = [event for event in self.events if event.start <= now]
        return len(self.events)
