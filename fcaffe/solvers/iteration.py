"""What belongs to one iteration: its loss, which may come later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass
class Iteration:
    """One that was started: what gives its loss, what that smoothed to, its update's rate."""

    loss: Callable[[], np.float32]
    smoothed: float | None = None
    rate: float = 0.0


def known(loss: np.float32) -> Callable[[], np.float32]:
    """What gives a loss that is there already."""
    return lambda: loss
