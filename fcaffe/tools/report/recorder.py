"""The page of a running training, rewritten now and then; and of a finished one, from its log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import NetCurves, Output, TrainingLog, read_log
from fcaffe.net import Context, Net
from fcaffe.net.weights import load_weights, share_weights
from fcaffe.proto import read_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Observer, Solver
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.tools.report.page import Content, Evaluation, Mistake, first_filters, net_content, prototxts, write_page

EVERY = 5  # seconds between two pages
REFRESH = 10  # seconds after which an open page reloads itself
LONGEST = 30  # seconds of an evaluation, one after each test
WORST = 24  # mistakes with a picture in the page
CLASSES = 10_000  # largest number of classes for which a matrix is counted
SCORING = ("Accuracy", "SoftmaxWithLoss", "MultinomialLogisticLoss", "HingeLoss")  # bottoms: scores, labels


class Recorder(Observer):
    """Follows the solver of worker 0 and writes the page at `path`.

    Raises FcaffeError if the first page cannot be written. Later ones that cannot be written are warnings.
    """

    def __init__(self, path: str, solver: Solver, solver_file: str) -> None:
        self.path = path
        self.solver = solver
        self.content = Content(solver.net.name or "Training", "", TrainingLog(net=solver.net.name), refresh=REFRESH)
        self.content.prototxts = prototxts(solver_file)
        self.content.net = net_content(solver.net, train_net_param(solver.param)[0])
        self._solver_file = solver_file
        self._began = self._written = time.monotonic()
        self._first = solver.iteration
        self._tested = self._evaluated = 0  # iterations of the last test and of the evaluation
        self._net: Net | None = None  # a test net of its own
        self._update("The training is about to begin.")
        write_page(path, self.content)

    def iteration_ends(self, loss: float, rate: float) -> None:
        iteration, curves = self.solver.iteration, self.content.log
        curves.loss[iteration], curves.rate[iteration] = loss, rate
        if time.monotonic() - self._written > EVERY:
            done, last = iteration - self._first, self.solver.param.max_iter
            left = (time.monotonic() - self._began) / max(done, 1) * (last - iteration)
            self._write(f"Iteration {iteration:,} of {last:,}.", f"About {_duration(left)} left.")

    def test_ends(self, index: int, outputs: Sequence[tuple[str, np.ndarray, float]]) -> None:
        self._tested = self.solver.iteration
        net, number = self.content.log.test_nets.setdefault(index, NetCurves()), 0
        for name, values, weight in outputs:
            for value in values:
                output = net.outputs.setdefault(number, Output(name, number, bool(weight)))
                output.curve[self.solver.iteration] = float(value)
                number += 1
        if index == 0:
            self._evaluate()

    def end(self, error: BaseException | None) -> None:
        """Write the last page, with the error that has ended the training."""
        solver, last = self.solver, self.solver.param.max_iter
        stopped = solver.iteration < last
        took = time.monotonic() - self._began
        if error is None:
            self._evaluate()
            state = "Stopped at" if stopped else "Ended at"
        else:
            state = f"Ended by an error: {error} At" if isinstance(error, Exception) else "Interrupted. At"
        state += f" iteration {solver.iteration:,} of {last:,} after {_duration(took)}."
        saved = [one.path for one in solver.identity.own() if one.iteration > self._first]
        if stopped and saved:
            state += f" Go on by: fcaffe train --solver {self._solver_file} --snapshot {saved[0]}"
        self.content.refresh = 0
        self._write(state)
        if self._net is not None:
            self._net.close()

    def _update(self, state: str, left: str = "") -> None:
        """Bring the page's content up to date."""
        content, solver, elapsed = self.content, self.solver, time.monotonic() - self._began
        samples = (solver.iteration - self._first) * solver.passes * solver.share.total
        tiles = [("time", _duration(elapsed)), ("samples/s", f"{samples / max(elapsed, 1e-9):,.0f}")]
        tiles += [("workers", str(solver.workers.size)), ("engine", solver.engine.name)]
        if loss := content.log.loss:
            tiles += [("learning rate", f"{solver.rate:.4g}")]
            tiles += [(f"train loss, iteration {max(loss):,}", f"{loss[max(loss)]:.4g}")]
        if content.evaluation is not None and self._evaluated > self._tested:
            right = f"{content.evaluation.accuracy:.2%}"
            tiles += [(f"right in the test net, iteration {self._evaluated:,}", right)]
        content.state, content.left, content.tiles = state, left, tiles
        content.progress = min(1.0, solver.iteration / max(1, solver.param.max_iter))
        content.filters = first_filters(solver.net)

    def _write(self, state: str, left: str = "") -> None:
        self._update(state, left)
        try:
            write_page(self.path, self.content)
        except FcaffeError as problem:
            log.warning(str(problem))
        self._written = time.monotonic()

    def _evaluate(self) -> None:
        """Evaluate the first test net, on as many batches as its tests have or as fit into LONGEST."""
        param, began = self.solver.param, time.monotonic()
        if not self.solver.test_nets:
            return
        if self._net is None:
            net_param: Any = test_net_params(param)[0][0]
            self._net = _new_net(net_param, self.solver.engine)
            self.content.net = net_content(self._net, net_param)
        share_weights(self._net, self.solver.net)
        self._evaluated = self.solver.iteration
        moment = f"at iteration {self._evaluated:,}"
        self.content.evaluation = evaluate(self._net, self._batches(param.test_iter[0], began), moment)

    def _batches(self, number: int, began: float) -> Iterator[int]:
        """The indices of the batches to evaluate, as far as LONGEST allows.

        Other observers are told of each batch: one of them watches for a training that hangs.
        """
        for batch in range(number):
            if time.monotonic() - began > LONGEST:
                return
            for observer in self.solver.observers:
                observer.test_batch_begins()
            yield batch


def _new_net(param: Any, engine: Engine) -> Net:
    with log.quiet():
        return Net(param, Context(engine, CaffeRandom(0), noise="counter"))


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


def write_report(logs: Sequence[str], page: str, solver_file: str, weights: str, engine: Engine) -> None:
    """Write the page about the training of these logs.

    `solver_file` and `weights`, a model of its nets, may be "": then the page has fewer parts.

    Raises FcaffeError.
    """
    found = read_log(*logs)
    last = max(max(curve) for curve in found.curves() if curve)
    content = Content(found.net or "Training", f"{', '.join(logs)}, up to iteration {last:,}", found)
    if solver_file:
        param = read_solver(solver_file)
        content.state += f" of {param.max_iter:,}"
        content.prototxts = prototxts(solver_file)
        tests = test_net_params(param)
        net_param, _ = tests[0] if tests else train_net_param(param)
        with contextlib.closing(_new_net(net_param, engine)) as net:
            content.net = net_content(net, net_param)
            if weights:
                load_weights(net, weights)
                content.filters = first_filters(net)
                if tests:
                    moment = f"with {os.path.basename(weights)}"
                    content.evaluation = evaluate(net, range(param.test_iter[0]), moment)
    write_page(page, content)


def evaluate(net: Net, batches: Iterable[object], moment: str) -> Evaluation | None:
    """Run the net once for each item of `batches`.

    Returns None if no layer compares the scores of classes with one label a sample.
    """
    scoring = next((node for node in net.nodes if node.layer.type in SCORING), None)
    if scoring is None or len(scoring.bottoms) < 2:
        return None
    scores_blob, labels_blob = scoring.bottoms[:2]
    classes = scores_blob.count // max(1, labels_blob.count)
    if scores_blob.shape[:1] != (labels_blob.count,) or not 1 < classes <= CLASSES:
        return None
    pictures = next((blob for node in net.nodes for blob in node.tops if len(blob.shape) == 4), None)
    to_numpy = net.context.engine.to_numpy
    counts, worst = np.zeros((classes, classes), np.int64), list[Mistake]()
    for _ in batches:
        net.forward()
        labels = to_numpy(labels_blob.data).reshape(-1).astype(int)
        probabilities = _probabilities(to_numpy(scores_blob.data).reshape(len(labels), classes))
        guesses = probabilities.argmax(axis=1)
        valid = (labels >= 0) & (labels < classes)
        np.add.at(counts, (labels[valid], guesses[valid]), 1)
        wrong = np.flatnonzero(valid & (labels != guesses))
        of_guess = probabilities[wrong, guesses[wrong]]
        for index in wrong[np.argsort(-of_guess, kind="stable")[:WORST]]:
            values = to_numpy(pictures.data[index]).copy() if pictures is not None else np.zeros((1, 1, 1))
            probability = float(probabilities[index, guesses[index]])
            worst.append(Mistake(probability, int(labels[index]), int(guesses[index]), values))
        worst = sorted(worst, key=lambda mistake: -mistake.probability)[:WORST]
    return Evaluation(counts, worst, moment)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Softmax along axis 1, unless the rows are probabilities already."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
