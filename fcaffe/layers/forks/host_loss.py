"""The base of losses that match boxes, which the host does: forward finds the gradient, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe.layers.loss import LossLayer
from fcaffe.net import Blob


class HostLoss(LossLayer):
    """Base: `forward` sets `samples` and calls `store`; backward sends what was stored, divided by `samples`."""

    traits = replace(LossLayer.traits, needs_host=True, repeatable=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.gradient = Blob(self.xp, (), channels_last=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self.gradient.reshape(*bottom[0].shape)

    def store(self, gradient: np.ndarray) -> None:
        """Keep the gradient of the predictions, in C order of their shape, for backward."""
        self.gradient.data[...] = self.engine.from_numpy(gradient.reshape(self.gradient.shape))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return [self.gradient]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self.xp.multiply(self.gradient.data, top[0].diff / self.samples, out=bottom[0].diff)
