"""Batch growth in place of learning-rate decay (Smith, Kindermans, Ying and Le 2018).

Where the policy would lower the rate by a factor, the rate stays and the batch grows by that factor: each iteration
adds up the gradients of more passes. As in the paper the number of epochs is kept: stepsize, stepvalue and max_iter
count iterations of the solver's own batch, so that with the batch k times as large they come k times as soon.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.solvers.learning_rate import warm_up, warm_up_end

if TYPE_CHECKING:
    from fcaffe.solvers.solver import Solver


@dataclass(frozen=True)
class Phase:
    """From iteration `first` on: `passes` for each update, at base_lr times `factor`."""

    first: int
    passes: int
    factor: float


class BatchGrowth:
    """The phases of a training, from the solver's parameters alone.

    Passes are whole numbers and at most `most`; what part of a drop they do not make up for, the rate takes.
    """

    def __init__(self, param: Any, most: int) -> None:
        if param.lr_policy not in ("step", "multistep"):
            raise SolverError(f"batch growth needs lr_policy 'step' or 'multistep', not '{param.lr_policy}'")
        if not 0 < param.gamma < 1:
            raise SolverError(f"batch growth takes the place of drops by gamma, between 0 and 1, not {param.gamma:g}")
        self.most = most
        drops = list(_drops(param))
        if drops and drops[0] < warm_up_end(param):
            raise SolverError(f"batch growth at iteration {drops[0]} would begin before warm-up ends")
        gamma = float(f"{param.gamma:.7g}")  # the number that was written, of which float32 keeps only the nearest
        self.phases: list[Phase] = []
        place = 0.0  # in iterations taken
        for index, (start, end) in enumerate(zip([0, *drops], [*drops, param.max_iter], strict=True)):
            drop = gamma**index
            passes = most if most * drop <= param.iter_size else int(param.iter_size / drop * (1 + 1e-9))
            self.phases.append(Phase(_up(place), passes, drop * passes / param.iter_size))
            place += (end - start) * param.iter_size / passes
        self.max_iter = _up(place)

    def index(self, iteration: int) -> int:
        """How many drops growth has taken the place of."""
        return bisect_right(self.phases, iteration, key=lambda phase: phase.first) - 1

    def phase(self, iteration: int) -> Phase:
        return self.phases[self.index(iteration)]

    def learning_rate(self, param: Any, iteration: int) -> float:
        rate = warm_up(param, iteration) if iteration < warm_up_end(param) else param.base_lr
        return float(np.float32(rate * self.phase(iteration).factor))


def grow_batch(solver: Solver, largest: int) -> None:
    """Let the solver's batch grow in place of its rate's decay, up to `largest` samples, and shorten its training.

    Raises SolverError if its policy has no drops to replace, or if the batch is that large already.
    """
    if solver.exchange.takes_momentum:
        raise SolverError(
            "batch growth does not go with a compression that applies the momentum of SGD (topk): it would add up "
            "gradients of batches of different sizes"
        )
    samples, param = solver.share.total, solver.param
    if largest < samples * param.iter_size:
        raise SolverError(
            f"the batch of {samples * param.iter_size} samples cannot grow up to {largest}: give a larger number"
        )
    growth = solver.growth = BatchGrowth(param, largest // samples)
    iterations = f"{growth.max_iter} iterations take the place of {param.max_iter}"
    log.info(f"The batch grows where the rate would drop, up to {largest} samples: {iterations}")
    param.max_iter = growth.max_iter
    told = param.iter_size

    def tell() -> None:
        nonlocal told
        if (passes := growth.phase(solver.iteration).passes) != told:
            log.info(f"Effective batch: {passes * samples} samples an iteration from {solver.iteration} on")
            told = passes

    solver.on_start.append(tell)


def _up(place: float) -> int:
    """Rounded up, but for what is only the rounding of sums."""
    return math.ceil(place - 1e-6)


def _drops(param: Any) -> Iterator[int]:
    """The iterations at which the policy would lower the rate."""
    if param.lr_policy == "step":
        if param.stepsize < 1:
            raise SolverError("lr_policy 'step' needs a positive stepsize")
        yield from range(param.stepsize, param.max_iter, param.stepsize)
        return
    last = 0
    for value in param.stepvalue:
        last = max(last, value)
        if last < param.max_iter:
            yield last
