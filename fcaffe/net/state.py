"""What is carried from one iteration to the next besides the parameters, and how several workers hold it."""

from __future__ import annotations

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
