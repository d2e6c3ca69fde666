"""The scale of the loss, which keeps float16 gradients from vanishing (Micikevicius et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe.engines.cuda.kernels import THREADS, blocks_for

if TYPE_CHECKING:
    from fcaffe.engines.cuda.engine import CudaEngine

Array = Any

FIRST, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**24  # of a scale that is found as it goes
PATIENCE = 2000  # updates without overflow before it is doubled


class LossScale:
    """`fixed`, or None: halved, and the update left out, whenever a gradient is not finite; doubled after 2000 updates.

    All of it stays on the device. In each iteration: `apply` before backward, `check` once all workers' gradients are
    added up, so that all come to the same, then the engine's update, which undoes the scale, and `adjust`.
    """

    def __init__(self, engine: CudaEngine, fixed: float | None = None) -> None:
        self.engine = engine
        self.patience = PATIENCE if fixed is None else 0
        scale = FIRST if fixed is None else fixed
        self._scales = engine.xp.asarray(np.array([scale, 1 / scale], np.float32))
        self._steps = engine.xp.zeros(2, np.int32)

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
        """Go on from what `state` gave; a scale that is fixed stays as it is, and so does one of which there is nothing
        in the snapshot."""
        if self.patience and state:
            self._scales[...] = self.engine.from_numpy(state["scales"].astype(np.float32))
            self._steps[...] = self.engine.from_numpy(state["steps"].astype(np.int32))

    def apply(self, losses: Iterable[tuple[Array, float]]) -> None:
        """For the diff of each top that is a loss, and its weight: diff = weight * scale."""
        for diff, weight in losses:
            diff[...] = self._scales[0] * np.float32(weight)

    def check(self, gradients: Array) -> None:
        """Note an overflow if any of the gradients, flat float32, is not finite."""
        count = gradients.size
        blocks = blocks_for(count, per_thread=4)
        args = gradients, np.int64(count), self.engine.overflow
        self.engine.kernels.launch("update", "find_overflow", (), blocks, THREADS, *args)

    def adjust(self) -> None:
        """After the update: the scale of the next iteration; an overflow is over."""
        numbers = np.int32(self.patience), np.float32(SMALLEST), np.float32(LARGEST)
        args = self._scales, self._steps, self.engine.overflow, *numbers
        self.engine.kernels.launch("update", "adjust_scale", (), 1, 1, *args)
