"""Observers of a training on the command line: progress bar, heartbeat, recorded curves and timing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
import numpy as np

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers import Observer, Solver
from fcaffe.timeline import OTHER, summarize

Item = TypeVar("Item")

CLEAR_LINE = "\r\x1b[K"


@contextlib.contextmanager
def progress_of(solver: Solver) -> Iterator[None]:
    """Show the solver's progress while the body of the `with` runs it."""
    if not sys.stderr.isatty():
        yield
        return
    iterations = max(0, solver.param.max_iter - solver.iteration)
    with _bar(None, iterations, "Training", item_show_func=lambda text: text) as bar:

        class Advance(Observer):
            def iteration_ends(self, loss: float, rate: float) -> None:
                seconds = bar.time_per_iteration
                images = f"  {solver.net.batch_size * solver.passes / seconds:.0f} images/s" if seconds else ""
                bar.update(1, f"loss {log.number(loss)}  lr {log.number(rate)}{images}")

        solver.observers.append(advance := Advance())
        try:
            yield
        finally:
            solver.observers.remove(advance)


def counted(items: Iterable[Item], total: int, noun: str) -> Iterator[Item]:
    """Yield `total` items, and show on a terminal how many have come."""
    if not sys.stderr.isatty():
        yield from items
        return
    with _bar(items, total, noun) as bar:
        yield from bar


@contextlib.contextmanager
def _bar(items: Iterable[Any] | None, total: int, label: str, **settings: Any) -> Iterator[Any]:
    """Show a progress bar. A log line takes its row, and the next update draws it below."""
    log.set_show(lambda line: print(end=CLEAR_LINE + line, file=sys.stderr))
    try:
        with click.progressbar(items, total, label, show_pos=True, file=sys.stderr, **settings) as bar:
            yield bar
    finally:
        log.set_show(None)


class Heartbeat(Observer):
    """Lets the watchdog know what the solver does, and in which iteration."""

    def __init__(self, solver: Solver, watchdog: Watchdog) -> None:
        self.solver = solver
        self.watchdog = watchdog

    def iteration_begins(self) -> None:
        self.watchdog.beat("forward and backward", self.solver.iteration)

    def gradients_ready(self) -> None:
        self.watchdog.beat("the update", self.solver.iteration)

    def iteration_ends(self, loss: float, rate: float) -> None:
        self.watchdog.beat("a snapshot or a test", self.solver.iteration)

    def test_batch_begins(self) -> None:
        self.watchdog.beat("a test", self.solver.iteration)


@contextlib.contextmanager
def recorded(solver: Solver, solver_file: str, report: str, tensorboard: str) -> Iterator[None]:
    """Record the training in the body of the `with`. Worker 0 writes the page `report` and the folder `tensorboard`."""
    if solver.workers.rank or not (report or tensorboard):
        yield
        return
    with contextlib.ExitStack() as stack:
        if tensorboard:
            events = TensorBoard(tensorboard, solver)
            stack.callback(events.writer.close)
            solver.observers.append(events)
        if report:
            from fcaffe.tools.report.recorder import Recorder

            recorder = Recorder(report, solver, solver_file)
            solver.observers.append(recorder)
            stack.push(lambda kind, error, _: recorder.end(error))
            log.info(f"A page about this training is in {report}; it renews itself while open")
        yield


class TensorBoard(Observer):
    """Writes events into `folder`.

    Tags are train/loss (smoothed, as in the log) and train/lr for each iteration, and test/NAME for the outputs of the
    test net, or testN/NAME if there are several test nets. Raises UsageError if it cannot write.
    """

    def __init__(self, folder: str, solver: Solver) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as problem:
            raise UsageError("--tensorboard needs tensorboardX: pip install tensorboardX") from problem
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


@contextlib.contextmanager
def timed(solver: Solver, hosts: Sequence[str]) -> Iterator[None]:
    """Time the training in the body of the `with`, then log where each worker's time went."""
    for _ in range(3):  # to begin at the same moment; the first sum may wait for a late worker, and is slower
        solver.workers.sum(0)
    solver.timeline.begin()
    with solver.timeline.span(OTHER):
        yield
    tell_times(solver, hosts)


def tell_times(solver: Solver, hosts: Sequence[str]) -> None:
    everyone = solver.workers.gather(dict(solver.timeline.seconds))
    for line in [*(summarize(everyone, hosts) if everyone else []), solver.exchange.summary()]:
        if line:
            log.info(line)
