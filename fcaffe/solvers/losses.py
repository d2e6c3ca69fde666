"""The losses of a training: smoothed as the log shows them, and of iterations whose loss is not known yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.state import Held, State

Loss = Callable[[], np.float32]  # waits for a loss that a device still computes, if it does


Number = TypeVar("Number")


def known(loss: Number) -> Callable[[], Number]:
    """A loss that is there already."""
    return lambda: loss


class SmoothedLoss:
    """The mean of the last `window` losses, kept up in float32 as Caffe does: of fewer as long as there are no more."""

    held = Held.ALIKE

    def __init__(self, window: int) -> None:
        self.window = window
        self.mean = np.float32(0)
        self.count = 0  # losses that were added
        self._losses: list[np.float32] = []
        self._restored = False

    def begin(self) -> None:
        """Forget the losses so far, as Caffe does at each call of `step`; but not those of a state just restored."""
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
        """Go on from there, unless the window was another one."""
        losses, count = state["losses"].astype(np.float32), int(state["count"])
        if len(losses) == min(count, self.window):
            self._losses, self.mean, self.count = list(losses), np.float32(state["mean"]), count
            self._restored = True

    def clear(self) -> None:
        self.mean, self.count, self._losses = np.float32(0), 0, []


@dataclass
class Iteration:
    """One that was started: its loss, the learning rate of its update, and the smoothed loss once that is known."""

    loss: Loss
    rate: float = 0.0
    smoothed: float | None = None


class StartedIterations:
    """The iterations that were started and have not been told of, in their order. An engine that runs ahead starts the
    next one before the loss of the last is known."""

    def __init__(self, smoothed: SmoothedLoss) -> None:
        self.smoothed = smoothed
        self._iterations: deque[Iteration] = deque()

    def begin(self) -> None:
        self._iterations.clear()
        self.smoothed.begin()

    def add(self, loss: Loss) -> Iteration:
        self._iterations.append(Iteration(loss))
        return self._iterations[-1]

    def settle(self, ahead: int = 0) -> None:
        """Wait for the losses of all but the last `ahead`, and take them into the smoothed one."""
        for iteration in list(self._iterations)[: len(self._iterations) - ahead]:
            if iteration.smoothed is None:
                self.smoothed.add(iteration.loss())
                iteration.smoothed = float(self.smoothed.mean)

    def take_settled(self) -> Iterator[tuple[float, float]]:
        """The smoothed losses and rates of those that are settled, which are forgotten then."""
        while self._iterations and (smoothed := self._iterations[0].smoothed) is not None:
            yield smoothed, self._iterations.popleft().rate
