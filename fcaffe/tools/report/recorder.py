"""The page of a training that goes on: written anew now and then, and once more at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import NetCurves, Output, TrainingLog
from fcaffe.net import Context, Net
from fcaffe.net.weights import share_weights
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Observer, Solver
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.tools.report.evaluation import Evaluation, evaluate
from fcaffe.tools.report.net_content import drawing, first_filters, layer_rows, prototxts
from fcaffe.tools.report.page import Content, write_page

EVERY = 5  # seconds between two pages
REFRESH = 10  # seconds after which an open page loads itself anew
LONGEST = 30  # seconds of one look at what the net confuses
SHARE = 0.05  # of the time of a training that looking at what the net confuses may take


class Recorder(Observer):
    """Follows the solver of worker 0 and writes the page at `path`. Raises FcaffeError if it cannot be written at all;
    later on a page that cannot be written is a warning, since the training matters more."""

    def __init__(self, path: str, solver: Solver, solver_file: str) -> None:
        self.path = path
        self.solver = solver
        self.log = TrainingLog(net=solver.net.name)
        self._prototxts = prototxts(solver_file)
        self._drawing = drawing(train_net_param(solver.param)[0])
        self._began = self._written = self._evaluated = time.monotonic()
        self._first = solver.iteration
        self._cost = 0.0  # seconds of the last evaluation
        self._evaluation: Evaluation | None = None
        self._net: Net | None = None  # that is evaluated: its layers run one by one, so each blob can be looked at
        write_page(path, self._content("The training is about to begin."))

    def iteration_ends(self, loss: float, rate: float) -> None:
        iteration = self.solver.iteration
        self.log.loss[iteration], self.log.rate[iteration] = loss, rate
        if time.monotonic() - self._written > EVERY:
            self._write(self._content(self._state()))

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        net, number = self.log.test_nets.setdefault(index, NetCurves()), 0
        for name, values, weight in outputs:
            for value in values:
                output = net.outputs.setdefault(number, Output(name, number, bool(weight)))
                output.curve[self.solver.iteration] = float(value)
                number += 1
        if index == 0 and time.monotonic() - self._evaluated > self._cost / SHARE:
            self._evaluate()

    def end(self, seconds: dict[str, dict[str, float]], problem: str = "") -> None:
        """Write the last page: with the seconds of all workers' timelines, and with what has ended the training if it
        has failed."""
        if not problem:
            self._evaluate()
        took = _duration(time.monotonic() - self._began)
        content = self._content(problem or f"Ended at iteration {self.solver.iteration:,} after {took}.")
        content.seconds, content.refresh = seconds or content.seconds, 0
        self._write(content)
        if self._net is not None:
            self._net.close()

    def _state(self) -> str:
        done, last = self.solver.iteration - self._first, self.solver.schedule.max_iter
        left = (time.monotonic() - self._began) / max(done, 1) * (last - self.solver.iteration)
        return f"Iteration {self.solver.iteration:,} of {last:,}; about {_duration(left)} left."

    def _content(self, state: str) -> Content:
        solver, elapsed = self.solver, time.monotonic() - self._began
        samples = (solver.iteration - self._first) * solver.passes * solver.share.total
        tiles = [("time", _duration(elapsed)), ("samples a second", f"{samples / max(elapsed, 1e-9):,.0f}")]
        if self.log.loss:
            tiles += [
                ("training loss", f"{list(self.log.loss.values())[-1]:.4g}"),
                ("learning rate", f"{solver.rate:.4g}"),
            ]
        for net in self.log.test_nets.values():
            scores = [output for output in net.outputs.values() if not output.is_loss]
            tiles += [(f"test {one.name}", f"{list(one.curve.values())[-1]:.4g}") for one in scores[:3]]
        tiles += [("workers", str(solver.workers.size)), ("engine", solver.engine.name)]
        name, filters = first_filters(solver.net)
        return Content(
            title=solver.net.name or "Training",
            state=state,
            log=self.log,
            progress=min(1.0, solver.iteration / max(1, solver.schedule.max_iter)),
            tiles=tiles,
            evaluation=self._evaluation,
            filters=filters,
            filters_of=name,
            layers=layer_rows(self._net, self._evaluation.seconds)
            if self._net is not None and self._evaluation is not None
            else layer_rows(solver.net),
            seconds={"worker 0": dict(solver.timeline.seconds)},
            drawing=self._drawing,
            prototxts=self._prototxts,
            refresh=REFRESH,
        )

    def _write(self, content: Content) -> None:
        try:
            write_page(self.path, content)
        except FcaffeError as problem:
            log.warning(str(problem))
        self._written = time.monotonic()

    def _evaluate(self) -> None:
        """See what the first test net confuses, on as many batches as its tests have or as there is time for."""
        param, began = self.solver.param, time.monotonic()
        if not self.solver.test_nets:
            return
        if self._net is None:
            with log.quiet():
                net_param, _ = test_net_params(param)[0]
                self._net = Net(net_param, Context(self.solver.engine, CaffeRandom(0), noise="counter"))
        share_weights(self._net, self.solver.net)
        self._evaluation = evaluate(self._net, self._batches(param.test_iter[0], began))
        self._evaluated, self._cost = time.monotonic(), time.monotonic() - began

    def _batches(self, number: int, began: float) -> Iterator[int]:
        """The numbers of the batches to look at, as far as LONGEST allows. Other observers hear of each, since who
        watches for a training that hangs is one of them."""
        for batch in range(number):
            if time.monotonic() - began > LONGEST:
                return
            for observer in self.solver.observers:
                observer.test_batch_begins()
            yield batch


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"
