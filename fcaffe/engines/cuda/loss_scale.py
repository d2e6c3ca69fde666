"""The scale of the loss, which keeps float16 gradients from vanishing (Micikevicius et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.memory import Array

FIRST, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**24  # of an adapted scale
PATIENCE = 2000  # updates without overflow before it is doubled


class LossScale:
    """A `fixed` scale, or an adapted one for None.

    If a gradient is not finite, the update is skipped and the adapted scale is halved. After 2000 updates without
    overflow it is doubled. All state stays on the device.

    Each iteration calls `apply` before backward; `check` after the sum over the workers, so that all workers decide
    alike; the engine's update, which divides by the scale; and `adjust`. `check` writes `overflow` (int32, (1,)), which
    the update and `adjust` read.
    """

    def __init__(self, xp: Any, kernels: Kernels, overflow: Array, fixed: float | None = None) -> None:
        self.xp, self.kernels, self.overflow = xp, kernels, overflow
        self.patience = PATIENCE if fixed is None else 0
        scale = FIRST if fixed is None else fixed
        self._scales = xp.asarray(np.array([scale, 1 / scale], np.float32))
        self._steps = xp.zeros(2, np.int32)

    @property
    def scale(self) -> Array:
        """(1,): the factor of the losses."""
        return self._scales[:1]

    @property
    def inverse(self) -> Array:
        """(1,): the factor of the gradients in the update."""
        return self._scales[1:]

    @property
    def skipped(self) -> Array:
        """(1,): number of skipped updates."""
        return self._steps[1:]

    def state(self) -> dict[str, np.ndarray]:
        """For snapshots; empty for a fixed scale."""
        return {"scales": self._scales.get(), "steps": self._steps.get()} if self.patience else {}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from what `state` returned. A fixed scale stays; so does any scale if the snapshot has none."""
        if self.patience and state:
            self._scales[...] = self.xp.asarray(state["scales"].astype(np.float32))
            self._steps[...] = self.xp.asarray(state["steps"].astype(np.int32))

    def apply(self, losses: Iterable[tuple[Array, float]]) -> None:
        """diff = weight * scale, for the gradient and the weight of each loss."""
        for diff, weight in losses:
            diff[...] = self._scales[0] * np.float32(weight)

    def check(self, gradients: Array) -> None:
        """Set `overflow` if one of the flat float32 gradients is not finite."""
        note_overflow(self.kernels, gradients, self.overflow)

    def adjust(self) -> None:
        """After the update: adapt the scale for the next iteration, and clear `overflow`."""
        numbers = np.int32(self.patience), np.float32(SMALLEST), np.float32(LARGEST)
        self.kernels.launch("update", "adjust_scale", (), 1, 1, self._scales, self._steps, self.overflow, *numbers)


def note_overflow(kernels: Kernels, values: Array, found: Array) -> None:
    """found[0] = 1 if any value of a flat float32 array is not finite."""
    blocks = blocks_for(values.size, per_thread=4)
    kernels.launch("update", "find_overflow", (), blocks, THREADS, values, np.int64(values.size), found)
