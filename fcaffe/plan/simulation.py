"""One iteration of a worker, event by event: backward finishes layers, buckets are summed one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fcaffe.plan.buckets import Bucket
from fcaffe.plan.rounds import Sum


@dataclass(frozen=True)
class Event:
    """What took place from `start` to `end`, in seconds from the beginning of the pass."""

    what: str
    start: float
    end: float


@dataclass
class Outcome:
    """Seconds of an iteration: `computing` if no sums had come between, the end of backward, the end of all.
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
    costs: Sequence[Sum],
    overlap: bool = True,
    busy: float = 0.0,
) -> Outcome:
    """`backward` has the seconds of the layers in the order in which backward comes by them, to which `after` of the
    buckets refers; `costs` are the sums of these. With `overlap` a bucket is summed as soon as it is ready and those
    before it are through; without, all are after backward. `busy`: the share of a core's time for sums that is taken
    from computing, which otherwise has all cores."""
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


def pipelined(
    forward: Sequence[float],
    needs: Sequence[float],
    backward: Sequence[float],
    cut: Sequence[Bucket],
    costs: Sequence[Sum],
    update: float = 0.0,
    busy: float = 0.0,
) -> Outcome:
    """What fcaffe's ranks on CPUs of several hosts do again and again, from the beginning of one backward pass to that
    of the next: sums go on behind the forward pass in between, until a layer needs what they are of.

    `forward` and `needs` are in the net's order: a layer needs the parameters before these bytes. The last bucket, that
    of the first layers, is summed before those that have not begun when it is ready, and the worker waits for it. The
    update, `update` seconds in all, goes as far as gradients are summed whenever a layer needs parameters that it has
    not come to. `backward`, `cut`, `costs` and `busy` are those of `simulate`; there is one bucket at least.
    """
    exchange, front = _Exchange(busy), len(cut) - 1
    now, ready = 0.0, 0
    for index, seconds in enumerate(backward):
        now = exchange.compute(now, seconds)
        while ready < front and cut[ready].after == index:
            exchange.sum(now, cut[ready], costs[ready])
            ready += 1
    backward_end = now
    begun = exchange.keep_begun(now)
    order = [*range(begun), front, *range(begun, front)]
    for place in order[begun:]:
        exchange.sum(now, cut[place], costs[place])
    updating = _Updating(cut, dict(zip(order, exchange.events, strict=True)), update)
    now = updating.need(exchange, 1, now)  # the losses come with the front bucket
    for seconds, stop in zip(forward, needs, strict=True):
        now = exchange.compute(updating.need(exchange, stop, now), seconds)
    end = updating.need(exchange, updating.total, now)
    return Outcome(
        computing=sum(forward) + sum(backward) + update,
        backward_end=backward_end,
        end=end,
        summing=sum((cost.seconds for cost in costs), 0.0),
        events=[Event("backward", 0.0, backward_end), *exchange.events, Event("update, forward", backward_end, end)],
    )


class _Updating:
    """An update that goes on as gradients are summed."""

    def __init__(self, cut: Sequence[Bucket], sums: Mapping[int, Event], seconds: float) -> None:
        """`sums`: of each bucket of `cut`, by its number."""
        self.total = sum(bucket.bytes for bucket in cut)
        self.seconds = seconds
        self._updated = 0.0  # bytes, from the front
        self._ends: list[tuple[float, float]] = []  # where a bucket begins, and when it is summed
        start = self.total
        for number, bucket in enumerate(cut):
            start -= bucket.bytes
            self._ends.append((start, sums[number].end))

    def need(self, exchange: _Exchange, stop: float, now: float) -> float:
        """When the parameters before byte `stop` are updated, if they are asked for now."""
        if self._updated >= min(stop, self.total):
            return now
        now = max([now, *(end for start, end in self._ends if start < stop)])
        until = min((start for start, end in self._ends if end > now), default=self.total)
        share, self._updated = (until - self._updated) / self.total, until
        return exchange.compute(now, share * self.seconds)


class _Exchange:
    """Sums, one after the other, and what they take from a worker that computes meanwhile."""

    def __init__(self, busy: float) -> None:
        self.busy = busy
        self.events: list[Event] = []
        self._shares: list[float] = []  # of a core, during each event
        self._first = 0  # event that may still be under way

    @property
    def free(self) -> float:
        """When all are through."""
        return self.events[-1].end if self.events else 0.0

    def sum(self, ready: float, bucket: Bucket, cost: Sum) -> None:
        start = max(ready, self.free)
        self.events.append(Event(f"sum of {bucket.bytes:,} bytes", start, start + cost.seconds))
        self._shares.append(min(1.0, self.busy * cost.cpu / cost.seconds) if cost.seconds else 0.0)

    def keep_begun(self, now: float) -> int:
        """Forget the sums that have not begun by now; returns how many have."""
        begun = sum(event.start <= now for event in self.events)
        del self.events[begun:], self._shares[begun:]
        return begun

    def compute(self, now: float, seconds: float) -> float:
        """When what takes so many seconds of a core ends, if it begins now."""
        while self._first < len(self.events) and seconds > 0:
            event, left = self.events[self._first], 1.0 - self._shares[self._first]
            if event.start > now:  # sums follow one another, so this is a gap before the first
                free = min(seconds, event.start - now)
                now, seconds = now + free, seconds - free
                continue
            done = max(0.0, (event.end - now) * left)
            if done >= seconds:  # so there was something left
                return now + seconds / left
            now, seconds = max(now, event.end), seconds - done
            self._first += 1
        return now + seconds
