"""The page of a running training, rewritten now and then; and of a finished one, from its log."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import TrainingLog, read_log
from fcaffe.proto import read_solver
from fcaffe.solvers import Observer, Solver
from fcaffe.tools.confusion import Confusion
from fcaffe.tools.report.numbers import LOSS, RATE, Numbers, beside, key_of
from fcaffe.tools.report.page import Content, prototxts, write_page

EVERY = 5  # seconds between two pages
REFRESH = 10  # seconds after which an open page reloads itself


class Recorder(Observer):
    """Follows the solver of worker 0 and writes the page at `path`.

    Raises FcaffeError if the first page cannot be written. Later ones that cannot be written are warnings.
    """

    def __init__(self, path: str, solver: Solver, solver_file: str) -> None:
        self.path = path
        self.solver = solver
        self.numbers = Numbers(beside(path), solver.identity.generations[0].id, solver.iteration)
        self.content = Content(solver.net.name or "Training", "", TrainingLog(net=solver.net.name), refresh=REFRESH)
        self.content.prototxts = prototxts(solver_file)
        self._solver_file = solver_file
        self._began = self._written = time.monotonic()
        self._first = solver.iteration
        self._tested = 0  # iteration of the last test
        self._confusions = [Confusion(net) for net in solver.test_nets[:1]]
        self._update("The training is about to begin.")
        write_page(path, self.content)

    def iteration_ends(self, loss: float, rate: float) -> None:
        iteration = self.solver.iteration
        self.numbers.add(LOSS, iteration, loss)
        self.numbers.add(RATE, iteration, rate)
        if time.monotonic() - self._written > EVERY:
            done, last = iteration - self._first, self.solver.param.max_iter
            left = (time.monotonic() - self._began) / max(done, 1) * (last - iteration)
            self._write(f"Iteration {iteration:,} of {last:,}.", f"About {_duration(left)} left.")

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        self._tested = self.solver.iteration
        found = [(name, float(value), bool(weight)) for name, values, weight in outputs for value in values]
        for number, (name, value, is_loss) in enumerate(found):
            self.numbers.add(key_of(index, number, is_loss, name), self.solver.iteration, value)
        for confusion in self._confusions[index:]:
            self.content.evaluation = confusion.result(f"at iteration {self._tested:,}")
            confusion.clear()

    def test_batch_ends(self, index: int) -> None:
        for confusion in self._confusions[index:]:
            confusion.add()

    def end(self, error: BaseException | None) -> None:
        """Write the last page, with the error that has ended the training."""
        solver, last = self.solver, self.solver.param.max_iter
        stopped = solver.iteration < last
        took = time.monotonic() - self._began
        if error is None:
            state = "Stopped at" if stopped else "Ended at"
        else:
            state = f"Ended by an error: {error} At" if isinstance(error, Exception) else "Interrupted. At"
        state += f" iteration {solver.iteration:,} of {last:,} after {_duration(took)}."
        saved = [one.path for one in solver.identity.own() if one.iteration > self._first]
        if stopped and saved:
            state += f" Go on by: fcaffe train --solver {self._solver_file} --snapshot {saved[0]}"
        self.content.refresh = 0
        self._write(state)
        self.numbers.close()

    def _update(self, state: str, left: str = "") -> None:
        """Bring the page's content up to date."""
        content, solver, elapsed = self.content, self.solver, time.monotonic() - self._began
        content.log = self.numbers.log(content.log.net)
        samples = (solver.iteration - self._first) * solver.passes * solver.share.total
        tiles = [("time", _duration(elapsed)), ("samples/s", f"{samples / max(elapsed, 1e-9):,.0f}")]
        tiles += [("workers", str(solver.workers.size)), ("engine", solver.engine.name)]
        if loss := content.log.loss:
            tiles += [("learning rate", f"{solver.rate:.4g}")]
            tiles += [(f"train loss, iteration {max(loss):,}", f"{loss[max(loss)]:.4g}")]
        for output in content.log.test_nets[0].outputs.values() if 0 in content.log.test_nets else ():
            iteration = max(output.curve, key=lambda one: (output.curve[one], -one))
            if not output.is_loss and 0 < iteration < self._tested and 0 <= output.curve[iteration] <= 1:
                tiles.append((f"best test {output.name}, iteration {iteration:,}", f"{output.curve[iteration]:.4g}"))
        content.state, content.left, content.tiles = state, left, tiles
        content.progress = min(1.0, solver.iteration / max(1, solver.param.max_iter))

    def _write(self, state: str, left: str = "") -> None:
        self._update(state, left)
        try:
            write_page(self.path, self.content)
        except FcaffeError as problem:
            log.warning(str(problem))
        self._written = time.monotonic()


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


def write_report(logs: Sequence[str], page: str, solver_file: str) -> None:
    """Write the page about the training of these logs, with the prototxts of its solver unless that is "".

    Raises FcaffeError.
    """
    found = read_log(*logs)
    last = max(max(curve) for curve in found.curves() if curve)
    content = Content(found.net or "Training", f"{', '.join(logs)}, up to iteration {last:,}", found)
    if solver_file:
        content.state += f" of {read_solver(solver_file).max_iter:,}"
        content.prototxts = prototxts(solver_file)
    write_page(page, content)
