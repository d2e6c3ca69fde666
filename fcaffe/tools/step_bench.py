"""How long whole iterations of trainings take between live ranks, in turns, and what they are made of."""

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
    """What some iterations have taken, in seconds for one of them.

    `seconds` at the slowest worker; `split`, by the kinds of the timeline, on average over the workers, of whose time
    it is the whole. `sums` and `exposed`, worker 0's: what sums of gradients have taken, and what of that the training
    has waited for; what is left was hidden behind forward and backward.
    """

    seconds: float
    split: dict[str, float]
    sums: float
    exposed: float


@dataclass
class Training:
    """A training of all ranks that is measured. All calls are collective."""

    name: str
    solver: Solver
    watchdog: Watchdog = field(default_factory=Watchdog)
    turns: list[Turn] = field(default_factory=list)

    def take(self, iterations: int) -> Turn:
        """Take so many iterations, after one that brings its memory back into the caches. The same on all ranks."""
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
        """Of one iteration, on all workers."""
        return self.solver.share.total * self.solver.passes

    def result(self) -> dict[str, Any]:
        """Medians over the turns, in milliseconds an iteration; `split_ms` by kinds of time; `least_ms` is the shortest
        turn's, which whatever else the machine did has struck least."""
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
    """Iterations of a turn: as many as take about a quarter of a second. All ranks of the training must call this."""
    return max(1, min(MOST, round(TURN / training.take(1).seconds)))


def take_turns(trainings: Sequence[Training], rounds: int, iterations: int = 0) -> None:
    """In each round every training takes iterations (0: as many as take about a quarter of a second), so that whatever
    else the machine does strikes all alike. All ranks must call this."""
    counts = [iterations or turn_length(training) for training in trainings]
    for _ in range(rounds):
        for training, count in zip(trainings, counts, strict=True):
            training.turns.append(training.take(count))
