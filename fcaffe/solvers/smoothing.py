"""The loss that the log shows: the mean of the last few iterations' losses."""

from __future__ import annotations

import numpy as np

from fcaffe.net.state import Held, State


class SmoothedLoss:
    """The mean of the last `window` losses, kept up in float32 as Caffe does: of fewer as long as there are no more."""

    held = Held.ALIKE

    def __init__(self, window: int) -> None:
        self.window = window
        self.mean = np.float32(0)
        self.count = 0  # losses that were added
        self._losses: list[np.float32] = []

    def add(self, loss: np.float32) -> None:
        if len(self._losses) < self.window:
            self._losses.append(loss)
            n = np.float32(len(self._losses))
            self.mean = (self.mean * (n - np.float32(1)) + loss) / n
        else:
            oldest = self.count % self.window
            self.mean += (loss - self._losses[oldest]) / np.float32(self.window)
            self._losses[oldest] = loss
        self.count += 1

    def state(self) -> State:
        losses = np.array(self._losses, np.float32)
        return {"losses": losses, "mean": np.array(self.mean), "count": np.array(self.count, np.int64)}

    def restore_state(self, state: State) -> None:
        """Go on from there, unless the window was another one."""
        losses, count = state["losses"].astype(np.float32), int(state["count"])
        if len(losses) == min(count, self.window):
            self._losses, self.mean, self.count = list(losses), np.float32(state["mean"]), count
