"""The base of losses that match boxes, which the host does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe.layers.loss import GradientLoss


class HostLoss(GradientLoss):
    """Base: `forward` sets `samples`, and calls `store` with arrays of the host."""

    traits = replace(GradientLoss.traits, needs_host=True, repeatable=True)

    def store(self, *gradients: np.ndarray) -> None:
        super().store(*map(self.engine.from_numpy, gradients))
