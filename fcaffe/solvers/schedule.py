"""The rate and the number of passes of each iteration, from the solver's parameters."""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.solvers.learning_rate import learning_rate, next_step


class Schedule:
    """What the learning-rate policy says; a batch is `iter_size` passes all along.

    `current_step` is how many of a multistep policy's values have been passed; it belongs to the snapshot.
    """

    most_passes = 0  # up to which the number of passes grows, if it does

    def __init__(self, param: Any) -> None:
        self.param = param

    @property
    def max_iter(self) -> int:
        """Up to which iteration to train; a script may change it in the solver's parameters."""
        return int(self.param.max_iter)

    def passes(self, iteration: int) -> int:
        """How many passes add up their gradients for the update of this iteration."""
        return int(self.param.iter_size)

    def next_step(self, iteration: int, current_step: int) -> int:
        """`current_step` at this iteration, from that of the iteration before; the log is told of a change."""
        step = next_step(self.param, iteration, current_step)
        if self.param.lr_policy == "multistep" and step != current_step:
            log.multistep(iteration, step)
        return step

    def rate(self, iteration: int, current_step: int) -> float:
        """The learning rate of the update from `iteration` to the next."""
        return learning_rate(self.param, iteration, current_step)
