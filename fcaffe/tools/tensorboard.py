"""TensorBoard: writes the curves of a training by the optional package tensorboardX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fcaffe.errors import UsageError
from fcaffe.solvers import Observer, Solver


class TensorBoard(Observer):
    """Writes events into `folder`.

    Tags are train/loss (smoothed, as in the log) and train/lr for each iteration, and test/NAME for the outputs of the
    test net, or testN/NAME if there are several test nets. Raises UsageError if it cannot write.
    """

    looks = False

    def __init__(self, folder: str, solver: Solver) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as problem:
            raise UsageError("--tensorboard needs tensorboardX: pip install 'fcaffe[tensorboard]'") from problem
        self.solver = solver
        try:
            self.writer = SummaryWriter(folder)
        except OSError as problem:
            raise UsageError(f"--tensorboard {folder}: cannot write there ({problem.strerror})") from problem

    def iteration_ends(self, loss: float, rate: float) -> None:
        self.writer.add_scalar("train/loss", loss, self.solver.iteration)
        self.writer.add_scalar("train/lr", rate, self.solver.iteration)

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        group = f"test{index}" if len(self.solver.test_nets) > 1 else "test"
        for name, values, _ in outputs:
            for number, value in enumerate(values):
                tag = f"{group}/{name}" + (f"/{number}" if len(values) > 1 else "")
                self.writer.add_scalar(tag, float(value), self.solver.iteration)

    def close(self) -> None:
        self.writer.close()
