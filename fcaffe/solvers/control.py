"""Observer and Action: parts that follow the training loop, and what signals ask it to do."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from fcaffe.net.workers import Workers


class Observer:
    """Base class; override the events of interest. `Run.observers` receive them in their order."""

    def iteration_begins(self) -> None:
        """Called before the forward pass, after tests that are due."""

    def gradients_ready(self) -> None:
        """Called before the update, with the gradients summed over all workers."""

    def iteration_ends(self, loss: float, rate: float) -> None:
        """Called with the smoothed loss and the learning rate."""

    def test_batch_begins(self) -> None:
        """Called before the forward pass of a test net."""

    def test_batch_ends(self, index: int) -> None:
        """Called after the forward pass of test net `index`."""

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        """Called on worker 0 with the mean outputs of test net `index`: names, flat values, loss weights."""


class Action(enum.IntEnum):
    """An action that the training loop takes between two iterations, the most urgent last."""

    NONE = 0
    SAVE = 1  # a temporary snapshot, for a job that starts again
    SNAPSHOT = 2
    STOP = 3  # with a snapshot, unless snapshot_after_train is false
    TERMINATE = 4  # always with a snapshot


def agree(action: Action, workers: Workers) -> Action:
    """Return the most urgent action that any worker requests. Collective."""
    if workers.size == 1:
        return action
    return Action(int(workers.gather_array(np.array([action], np.float64)).max()))
