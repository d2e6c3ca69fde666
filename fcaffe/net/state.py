"""What is carried from one iteration to the next besides the parameters, and how several workers hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

State = dict[str, np.ndarray]  # arrays of the host's memory, of any type, by names of their owner's choice


class Held(Enum):
    """How the workers of a run hold a state, which says what becomes of it on another number of workers."""

    ALIKE = "all have the same"
    STREAMS = "each has some of the streams, which lie along the arrays' axis 1"
    SUM = "each has its own part, and only the sum of all of them counts"
    MEAN = "each has its own, and the model has the mean of all, from which others go on"
    OWN = "each has its own, and no other worker can take it over"


def part_of_worker(
    held: Held, states: Sequence[State], rank: int, workers: int, streams: Callable[[], Sequence[int]] | None = None
) -> State | None:
    """What worker `rank` of `workers` takes over of the states of all workers of an earlier run, in order of ranks.

    `streams` says how many streams each of the present workers has. None if they cannot be handed out like this.
    """
    if held is Held.ALIKE:
        return states[0]
    if len(states) == workers and (held is not Held.STREAMS or streams is None):
        return states[rank]
    if held is Held.SUM:
        return _sum(states[rank::workers], states[0])
    if held is not Held.STREAMS or streams is None:
        return None
    counts = list(streams())
    if len(states) == workers and all(_streams(state) == count for state, count in zip(states, counts, strict=True)):
        return states[rank]
    if sum(map(_streams, states)) != sum(counts):
        return None
    start = sum(counts[:rank])
    whole = {name: np.concatenate([state[name] for state in states], axis=1) for name in states[0]}
    return {name: array[:, start : start + counts[rank]] for name, array in whole.items()}


def _sum(states: Sequence[State], like: State) -> State:
    """The sum of each array of floats; 0 if there is none. What is no float, such as a count, is the same for all."""
    return {
        name: sum((state[name] for state in states), np.zeros_like(array)) if array.dtype.kind == "f" else array
        for name, array in like.items()
    }


def _streams(state: State) -> int:
    return next(iter(state.values())).shape[1] if state else 0
