"""Measures whole training iterations between live ranks, split by kinds of time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers import Solver
from fcaffe.timeline import KINDS, OTHER

TURN, MOST = 0.25, 50  # seconds of a turn, and the most iterations


class Turn(NamedTuple):
    """The mean seconds of some iterations.

    `seconds` is the time of the slowest worker. `split` is the mean of all workers by the kinds of the timeline, which
    add up to the whole. `sums` is what worker 0's sums of gradients took, and `exposed` the part that the training
    waited for; the rest was hidden behind forward and backward.
    """

    seconds: float
    split: dict[str, float]
    sums: float
    exposed: float


@dataclass
class Training:
    """A training to measure. All calls are collective."""

    name: str
    solver: Solver
    watchdog: Watchdog = field(default_factory=Watchdog)
    turns: list[Turn] = field(default_factory=list)

    def take(self, iterations: int) -> Turn:
        """Take so many iterations, after one that loads the caches. `iterations` is the same on all ranks."""
        solver, workers = self.solver, self.solver.workers
        self.watchdog.beat(f"measuring {self.name}", solver.iteration)
        solver.step(1)
        workers.sum(0.0)  # all begin together
        timeline, exchange = solver.timeline, solver.exchange
        sums, exposed = exchange.seconds, exchange.exposed
        timeline.begin()
        began = time.perf_counter()
        with timeline.span(OTHER):
            solver.step(iterations)
        own = [time.perf_counter() - began, *(timeline.seconds[kind] for kind in KINDS)]
        own += [exchange.seconds - sums, exchange.exposed - exposed]
        everyone = np.array(workers.broadcast_object(workers.gather(own))) / iterations
        split = dict(zip(KINDS, everyone[:, 1:-2].mean(axis=0).tolist(), strict=True))
        return Turn(float(everyone[:, 0].max()), split, *everyone[0, -2:].tolist())

    @property
    def samples(self) -> int:
        """Samples of one iteration on all workers."""
        return self.solver.share.total * self.solver.passes

    def result(self) -> dict[str, Any]:
        """Medians over the turns, in milliseconds an iteration. `split_ms` has kinds of time, `least_ms` the shortest
        turn, which other load of the machine affected least."""
        workers, exchange = self.solver.workers, self.solver.exchange
        ms = 1000 * median(turn.seconds for turn in self.turns)
        split = {kind: 1000 * median(turn.split[kind] for turn in self.turns) for kind in KINDS}
        sums = 1000 * median(turn.sums for turn in self.turns)
        exposed = 1000 * median(turn.exposed for turn in self.turns)
        return {
            "name": self.name,
            "workers": workers.size,
            "batch": self.samples,
            "ms": ms,
            "least_ms": 1000 * min(turn.seconds for turn in self.turns),
            "images_per_second": 1000 * self.samples / ms,
            "split_ms": {kind: value for kind, value in split.items() if value},
            "sums_ms": sums,
            "hidden_ms": max(0.0, sums - exposed),
            "gradient_bytes": 4 * int(self.solver.net.parameters.count),
            "bucket_bytes": list(getattr(exchange, "cut", [])),
        }


def turn_length(training: Training) -> int:
    """The number of iterations that take about a quarter of a second. Collective."""
    return max(1, min(MOST, round(TURN / training.take(1).seconds)))


def take_turns(trainings: Sequence[Training], rounds: int, iterations: int = 0) -> None:
    """Measure the trainings alternately, so that other load of the machine affects all alike. Collective.

    Args:
        trainings: The trainings.
        rounds: Number of turns of each training.
        iterations: Iterations of a turn; 0 for as many as take about a quarter of a second.
    """
    counts = [iterations or turn_length(training) for training in trainings]
    for _ in range(rounds):
        for training, count in zip(trainings, counts, strict=True):
            training.turns.append(training.take(count))
