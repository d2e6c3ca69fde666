"""Batch growth instead of learning-rate decay (Smith, Kindermans, Ying and Le 2018).

Where the policy would lower the rate by a factor, the rate stays and the batch grows by that factor: each iteration
adds up the gradients of more passes. As in the paper the number of epochs is kept: stepsize, stepvalue and max_iter
count iterations of the solver's own batch, so that with the batch k times as large they come k times as soon.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.solvers.learning_rate import Schedule, warm_up, warm_up_end


@dataclass(frozen=True)
class Phase:
    """From iteration `first` on: `passes` for each update, at base_lr times `factor`."""

    first: int
    passes: int
    factor: float


class GrowingBatch(Schedule):
    """The phases of a training, from the solver's parameters alone: each pass has `samples`, and all at most
    `largest`.

    The number of passes is rounded down; the learning rate is lowered by the rest of the drop. Raises SolverError if
    the policy has no drops to replace, or if the batch is that large already.
    """

    def __init__(self, param: Any, samples: int, largest: int) -> None:
        super().__init__(param)
        if largest < samples * param.iter_size:
            raise SolverError(
                f"the batch of {samples * param.iter_size} samples cannot grow up to {largest}: give a larger number"
            )
        self.samples = samples
        self.most_passes = largest // samples
        self.phases = list(phases(param, self.most_passes))
        self._max_iter = self.phases.pop().first
        self._logged_passes = param.iter_size
        iterations = f"{self.max_iter} iterations replace {param.max_iter}"
        log.info(f"The batch grows where the rate would drop, up to {largest} samples: {iterations}")

    @property
    def max_iter(self) -> int:
        return self._max_iter

    def passes(self, iteration: int) -> int:
        return self.phases[self._index(iteration)].passes

    def next_step(self, iteration: int, current_step: int) -> int:
        """Number of drops of the rate that the growth has replaced."""
        if (passes := self.passes(iteration)) != self._logged_passes:
            log.info(f"Effective batch: {passes * self.samples} samples an iteration from {iteration} on")
            self._logged_passes = passes
        return self._index(iteration)

    def rate(self, iteration: int, current_step: int) -> float:
        rate = warm_up(self.param, iteration) if iteration < warm_up_end(self.param) else self.param.base_lr
        return float(np.float32(rate * self.phases[self._index(iteration)].factor))

    def _index(self, iteration: int) -> int:
        return bisect_right(self.phases, iteration, key=lambda phase: phase.first) - 1


def phases(param: Any, most: int) -> Iterator[Phase]:
    """The phases of a training whose passes grow up to `most`; the last one begins where the training ends."""
    if param.lr_policy not in ("step", "multistep"):
        raise SolverError(f"batch growth needs lr_policy 'step' or 'multistep', not '{param.lr_policy}'")
    if not 0 < param.gamma < 1:
        raise SolverError(f"batch growth replaces drops by a gamma between 0 and 1, not {param.gamma:g}")
    drops = list(_drops(param))
    if drops and drops[0] < warm_up_end(param):
        raise SolverError(f"batch growth at iteration {drops[0]} would begin before warm-up ends")
    gamma = float(f"{param.gamma:.7g}")  # the number that was written, of which float32 keeps only the nearest
    first = 0.0  # in iterations taken
    for index, (start, end) in enumerate(zip([0, *drops], [*drops, param.max_iter], strict=True)):
        drop = gamma**index
        passes = most if most * drop <= param.iter_size else int(param.iter_size / drop * (1 + 1e-9))
        yield Phase(_up(first), passes, drop * passes / param.iter_size)
        first += (end - start) * param.iter_size / passes
    yield Phase(_up(first), 0, 0.0)


def _up(iterations: float) -> int:
    """Rounded up, but for what is only the rounding of sums."""
    return math.ceil(iterations - 1e-6)


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
