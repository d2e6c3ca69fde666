"""Observer: receives the events of a training, for a progress bar or a script's callbacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Observer:
    """Base class; override the events of interest. `Run.observers` receive them in their order.

    If an observer `looks` at weights or gradients, the training waits for all sums before it calls it. That costs time
    between several hosts, where the update of the last layers otherwise overlaps with the next forward pass.
    """

    looks = True

    def iteration_begins(self) -> None:
        """Called before the forward pass, after tests that are due."""

    def gradients_ready(self) -> None:
        """Called before the update, with the gradients summed over all workers."""

    def iteration_ends(self, loss: float, rate: float) -> None:
        """Called with the smoothed loss and the learning rate."""

    def test_batch_begins(self) -> None:
        """Called before the forward pass of a test net."""

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        """Called on worker 0 with the mean outputs of test net `index`: names, flat values, loss weights."""
