"""The smoothed loss of a training, which the log shows."""

from __future__ import annotations

import numpy as np

from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.layer import Held, State


class SmoothedLoss:
    """The mean of the last `window` losses, or of all if there are fewer; updated in float32 as in Caffe."""

    held = Held.ALIKE

    def __init__(self, window: int) -> None:
        self.window = window
        self.mean = np.float32(0)
        self.count = 0  # losses added so far
        self._losses: list[np.float32] = []
        self._restored = False

    def begin(self) -> None:
        """Clear the losses, as Caffe does at each call of `step`, but not those of a state just restored."""
        if not self._restored:
            self.clear()
        self._restored = False

    @silent_arithmetic
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
        """Restore the losses, unless the state has another window."""
        losses, count = state["losses"].astype(np.float32), int(state["count"])
        if len(losses) == min(count, self.window):
            self._losses, self.mean, self.count = list(losses), np.float32(state["mean"]), count
            self._restored = True

    def clear(self) -> None:
        self.mean, self.count, self._losses = np.float32(0), 0, []
