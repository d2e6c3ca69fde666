"""The best test of a training: keeps its weights, and says when tests have stopped to get better."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError, UsageError
from fcaffe.model_files import write_model
from fcaffe.net.layer import Held, State
from fcaffe.net.weights import to_model
from fcaffe.solvers.control import Observer
from fcaffe.solvers.evaluation import Detections, collectors
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot.files import best_path


class Best(Observer):
    """The best value of one output of the test nets, and the number of tests since.

    The first test net that has the output counts. Lower values of a loss are better, and higher ones of other outputs,
    unless the name ends in `:min` or `:max`. NaN is never better. The state is the same on all workers. `patience` is
    after how many tests without a better value the training ends, 0 for never.
    """

    held = Held.ALIKE

    def __init__(self, run: Run, wanted: str, patience: int) -> None:
        if not wanted:
            raise UsageError("--patience needs an output of the test to go by: give --keep-best accuracy, or another")
        self.run, self.patience = run, patience
        name, _, direction = wanted.partition(":")
        if direction not in ("", "min", "max"):
            raise SolverError(f'--keep-best {wanted}: after the colon stands min or max, not "{direction}"')
        self.name = name
        self.net, lower = self._find(name)
        self.sign = -1 if (direction == "min" if direction else lower) else 1
        self.score = np.float32(math.nan)
        self.iteration = -1  # of the best test; none so far
        self.waited = 0  # tests since then
        self._now = math.nan  # on worker 0, the value of the last test

    def _find(self, name: str) -> tuple[int, bool]:
        """The index of the first test net with this output, and whether the output is a loss. Raises SolverError."""
        found: list[str] = []
        for index, net in enumerate(self.run.test_nets):
            for (output, blob, weight), collector in zip(net.outputs(), collectors(net), strict=True):
                if output == name:
                    if blob.count != 1 and not isinstance(collector, Detections):
                        raise SolverError(f"--keep-best {name}: this output has {blob.count} values; name one with one")
                    return index, bool(weight)
                found.append(output)
        has = f"the test nets have {', '.join(dict.fromkeys(found))}" if found else "the solver has no test net"
        raise SolverError(f"--keep-best {name}: there is no such output of a test; {has}")

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        if index == self.net:
            self._now = next(float(values[0]) for name, values, _ in outputs if name == self.name)

    def judge(self) -> bool:
        """Keep the weights if the test that has just ended is the best. Returns whether patience is at its end.

        Collective.
        """
        run = self.run
        now = np.float32(run.workers.broadcast_object(self._now))
        if not math.isnan(now) and (self.iteration < 0 or self.sign * now > self.sign * self.score):
            self.score, self.iteration, self.waited = now, run.iteration, 0
            model = to_model(run.net)
            if run.workers.rank == 0:
                path = best_path(run.param)
                write_model(path, model)
                log.info(f"Best {self.name} so far: {log.number(float(now))}, kept as {path}")
        else:
            self.waited += 1
        if not self.patience or self.waited < self.patience:
            return False
        best = (
            f"the best was {log.number(float(self.score))} at iteration {self.iteration}" if self.iteration >= 0 else ""
        )
        log.info(f"No better {self.name} in {self.waited} tests; {best or 'there was none'}")
        return True

    def state(self) -> State:
        numbers = {"iteration": self.iteration, "waited": self.waited, "sign": self.sign}
        return {"score": np.array(self.score)} | {name: np.array(value, np.int64) for name, value in numbers.items()}

    def restore_state(self, state: State) -> None:
        """Go on from the best of the run so far, unless it was of the other direction."""
        if int(state["sign"]) == self.sign:
            self.score, self.iteration = np.float32(state["score"]), int(state["iteration"])
            self.waited = int(state["waited"])
