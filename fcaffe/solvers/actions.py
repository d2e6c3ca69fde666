"""The actions that signals request of a training."""

from __future__ import annotations

import enum

import numpy as np

from fcaffe.net.workers import Workers


class Action(enum.Enum):
    """An action that the training loop takes between two iterations."""

    NONE = enum.auto()
    SAVE = enum.auto()  # a temporary snapshot, for a job that starts again
    SNAPSHOT = enum.auto()
    STOP = enum.auto()  # with a snapshot, unless snapshot_after_train is false
    TERMINATE = enum.auto()  # always with a snapshot


def agree(action: Action, workers: Workers) -> Action:
    """Return the most urgent action that any worker requests. Collective."""
    if workers.size == 1:
        return action
    votes = workers.sum_array(np.array([action is one for one in Action], np.float64))
    return [one for one, number in zip(Action, votes, strict=True) if number][-1]
