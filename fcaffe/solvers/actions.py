"""What signals ask of a training."""

from __future__ import annotations

import enum

import numpy as np

from fcaffe.net.workers import Workers


class Action(enum.Enum):
    """What a signal asks of the loop; taken up between two iterations."""

    NONE = enum.auto()
    SNAPSHOT = enum.auto()
    STOP = enum.auto()  # ends as training ends: with a snapshot, unless snapshot_after_train is false
    TERMINATE = enum.auto()  # a snapshot in any case, then stop


def agree(action: Action, workers: Workers) -> Action:
    """The most far-reaching of the actions that the workers are asked for; each of them must call this."""
    if workers.size == 1:
        return action
    votes = workers.sum_array(np.array([action is one for one in Action], np.float64))
    return [one for one, number in zip(Action, votes, strict=True) if number][-1]
