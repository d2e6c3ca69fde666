"""The losses of a training: the smoothed loss of the log, and iterations whose loss is still being computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.state import Held, State

Loss = Callable[[], np.float32]  # waits for a loss that a device still computes


Number = TypeVar("Number")


def known(loss: Number) -> Callable[[], Number]:
    """Return a Loss that is already known."""
    return lambda: loss


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


@dataclass
class Iteration:
    """A started iteration: its loss, the learning rate of its update, and the smoothed loss once it is known."""

    loss: Loss
    rate: float = 0.0
    smoothed: float | None = None


class StartedIterations:
    """The iterations that observers have not seen yet, in their order.

    An engine that runs ahead starts an iteration before the loss of the last one is known.
    """

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
        """Wait for the losses of all but the last `ahead` iterations, and add them to the smoothed loss."""
        for iteration in list(self._iterations)[: len(self._iterations) - ahead]:
            if iteration.smoothed is None:
                self.smoothed.add(iteration.loss())
                iteration.smoothed = float(self.smoothed.mean)

    def take_settled(self) -> Iterator[tuple[float, float]]:
        """Yield and remove the smoothed losses and rates of the settled iterations."""
        while self._iterations and (smoothed := self._iterations[0].smoothed) is not None:
            yield smoothed, self._iterations.popleft().rate
