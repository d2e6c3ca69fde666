"""The scale of the loss, which keeps float16 gradients from vanishing (Micikevicius et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for

Array = Any

FIRST, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**24  # of a scale that is found as it goes
PATIENCE = 2000  # updates without overflow before it is doubled


class LossScale:
    """`fixed`, or None: halved, and the update left out, whenever a gradient is not finite; doubled after 2000 updates.

    All of it stays on the device. In each iteration: `apply` before backward, `check` once all workers' gradients are
    added up, so that all workers find the same, then the engine's update, which undoes the scale, and `adjust`.
    `overflow` (int32, (1,)) is where a gradient that is not finite is noted, for the update and for `adjust`.
    """

    def __init__(self, xp: Any, kernels: Kernels, overflow: Array, fixed: float | None = None) -> None:
        self.xp, self.kernels, self.overflow = xp, kernels, overflow
        self.patience = PATIENCE if fixed is None else 0
        scale = FIRST if fixed is None else fixed
        self._scales = xp.asarray(np.array([scale, 1 / scale], np.float32))
        self._steps = xp.zeros(2, np.int32)

    @property
    def scale(self) -> Array:
        """(1,): what losses are multiplied by."""
        return self._scales[:1]

    @property
    def inverse(self) -> Array:
        """(1,): what gradients are to be multiplied by."""
        return self._scales[1:]

    @property
    def skipped(self) -> Array:
        """(1,): how many updates have been left out."""
        return self._steps[1:]

    def state(self) -> dict[str, np.ndarray]:
        """For snapshots; a scale that is fixed has none."""
        return {"scales": self._scales.get(), "steps": self._steps.get()} if self.patience else {}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` gave. A fixed scale stays as it is; so does one that the snapshot says nothing of."""
        if self.patience and state:
            self._scales[...] = self.xp.asarray(state["scales"].astype(np.float32))
            self._steps[...] = self.xp.asarray(state["steps"].astype(np.int32))

    def apply(self, losses: Iterable[tuple[Array, float]]) -> None:
        """diff = weight * scale, for the gradient and the weight of each loss."""
        for diff, weight in losses:
            diff[...] = self._scales[0] * np.float32(weight)

    def check(self, gradients: Array) -> None:
        """Note an overflow if any of the gradients, flat float32, is not finite."""
        note_overflow(self.kernels, gradients, self.overflow)

    def adjust(self) -> None:
        """After the update: the scale of the next iteration; an overflow is over."""
        numbers = np.int32(self.patience), np.float32(SMALLEST), np.float32(LARGEST)
        self.kernels.launch("update", "adjust_scale", (), 1, 1, self._scales, self._steps, self.overflow, *numbers)


def note_overflow(kernels: Kernels, values: Array, found: Array) -> None:
    """found[0] = 1 if any value of a flat float32 array is not finite."""
    blocks = blocks_for(values.size, per_thread=4)
    kernels.launch("update", "find_overflow", (), blocks, THREADS, values, np.int64(values.size), found)
