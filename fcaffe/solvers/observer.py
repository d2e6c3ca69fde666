"""Observer: who is told of the steps of a training while it goes on, such as a progress bar or a script's callbacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Observer:
    """Overrides what it wants to be told; `Run.observers` are told in their order.

    One that `looks` at weights or gradients finds them whole: the training waits for all sums before it is told. That
    costs time between several hosts, where else the update of the last layers is not through when the next forward pass
    begins.
    """

    looks = True

    def iteration_begins(self) -> None:
        """Ahead of the forward pass; tests that are due have been run."""

    def gradients_ready(self) -> None:
        """The gradients of the iteration are there, summed over all workers; the update comes next."""

    def iteration_ends(self, loss: float, rate: float) -> None:
        """With the smoothed loss and the learning rate; of an engine that runs ahead, an iteration late."""

    def test_batch_begins(self) -> None:
        """Ahead of the forward pass of a test net."""

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        """The outputs of test net `index`, means over its batches: names, flat values, loss weights. Worker 0 alone."""
