"""The base of losses that match boxes, which the host does: forward finds the gradients, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe.layers.loss import LossLayer
from fcaffe.net import Blob


class HostLoss(LossLayer):
    """Base: `forward` sets `samples` and calls `store`; backward sends what was stored, divided by `samples`."""

    traits = replace(LossLayer.traits, needs_host=True, repeatable=True)
    learning = 1  # how many bottoms, the first ones, have a gradient

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self.gradients = [Blob(self.xp, (), channels_last=True) for _ in range(self.learning)]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for gradient, blob in zip(self.gradients, bottom, strict=False):
            gradient.reshape(*blob.shape)

    def store(self, *gradients: np.ndarray) -> None:
        """Save the gradients of the bottoms, each in C order of its shape, for backward."""
        for blob, gradient in zip(self.gradients, gradients, strict=True):
            blob.data[...] = self.engine.from_numpy(gradient.reshape(blob.shape))

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return self.gradients

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for index, (blob, down) in enumerate(zip(bottom, propagate_down, strict=True)):
            if down and index < self.learning:
                self.xp.multiply(self.gradients[index].data, top[0].diff / self.samples, out=blob.diff)
            elif down:
                blob.diff[...] = 0
