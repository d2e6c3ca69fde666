"""Observers of a training on the command line: progress bar, heartbeat, recorded curves, timing and its trace.

A trace is for chrome://tracing or ui.perfetto.dev.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
import numpy as np

from fcaffe import log
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.jobs.world import World
from fcaffe.output_files import replacing, starting
from fcaffe.parallel.watchdog import Watchdog
from fcaffe.solvers import Observer, Solver
from fcaffe.timeline import EXCHANGE, KEPT, KEPT_BY_ALL, OTHER, TRAINING, Timeline, straggler, summarize, work_of

TRACE = starting("trace", rb'\{"traceEvents"')
THREADS = {TRAINING: "training", EXCHANGE: "gradient exchange"}
CHECKED_EVERY = 20  # iterations
LONGEST_COUNT = 300.0  # seconds of work after which a worker that was fast until then can be warned of

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


def events_of(timeline: Timeline, rank: int, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return Chrome's events of this worker: names of process and threads, and complete events ("X").

    Times are in microseconds since the beginning.
    """
    events = sorted(timeline.events, key=lambda event: event.begin)
    names = {"name": f"rank {rank} on {hosts[rank]}"}
    lines: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": names},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
    ]
    for thread in sorted({event.thread for event in events} | {TRAINING}):
        lines.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": THREADS[thread]}})
    for name, thread, begin, end, iteration in events:
        times = {"ts": round(1e6 * (begin - timeline.origin), 1), "dur": round(1e6 * (end - begin), 1)}
        lines.append({"ph": "X", "name": name, "pid": rank, "tid": thread, **times, "args": {"iteration": iteration}})
    return lines


def write(path: str, events: list[dict[str, Any]], summary: Sequence[str] = ()) -> None:
    """Write the file of a trace, with the lines of the log's summary. Raises FcaffeError."""
    import json  # which most trainings do without

    with replacing(path, "trace") as temporary, open(temporary, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"summary": summary}}, file)


class Stragglers(Observer):
    """Warns of each worker that stays much slower than the others, while it does so."""

    def __init__(self, solver: Solver, timeline: Timeline, hosts: Sequence[str]) -> None:
        self.solver = solver
        self.timeline = timeline
        self.hosts = hosts
        self.counted_from = 0.0
        self.known: set[int] = set()

    def iteration_begins(self) -> None:
        if self.solver.iteration % CHECKED_EVERY == 0:
            self.check()

    def check(self) -> None:
        """Compare the seconds since the last warning, or of the last minutes. Collective."""
        own = work_of(self.timeline.seconds)
        work = self.solver.workers.gather_array(np.array([own - self.counted_from]))[:, 0].tolist()
        found = straggler(work, self.hosts)
        if found and found[0] not in self.known:
            self.known.add(found[0])
            if self.solver.workers.rank == 0:
                log.warning(found[1])
        if found or max(work) > LONGEST_COUNT:
            self.counted_from = own


class Timing:
    """The timeline of this worker. `path` is the file of the trace, or "". FcaffeError if that is not writable."""

    def __init__(self, path: str, world: World) -> None:
        self.path = path
        self.world = world
        if path and world.rank == 0:
            write(path, [])  # so that a wrong path ends the command before the training
        self.timeline = Timeline(min(KEPT, KEPT_BY_ALL // world.size) if path else 0)

    @contextlib.contextmanager
    def of(self, solver: Solver) -> Iterator[None]:
        """Time the training in the body of the `with`, then log and write. After an error, write worker 0's trace."""
        for _ in range(3):  # to begin at the same moment; the first sum may wait for a late worker, and is slower
            solver.workers.sum(0)
        self.timeline.begin()
        self.stragglers = Stragglers(solver, self.timeline, self.world.hosts)
        solver.observers.append(self.stragglers)
        try:
            with self.timeline.span(OTHER):
                yield
        except BaseException:
            if self.path and self.world.rank == 0:
                with contextlib.suppress(FcaffeError):  # the first error says more
                    write(self.path, events_of(self.timeline, 0, self.world.hosts))
            raise
        self._tell(solver)

    def _tell(self, solver: Solver) -> None:
        self.stragglers.check()
        everyone = solver.workers.gather(dict(self.timeline.seconds))
        lines = summarize(everyone, self.world.hosts) if everyone else []
        for line in lines:
            log.info(line)
        if summary := solver.exchange.summary():
            log.info(summary)
        if not self.path:
            return
        own = events_of(self.timeline, self.world.rank, self.world.hosts)
        if gathered := solver.workers.gather(own):
            write(self.path, [event for events in gathered for event in events], lines)
            dropped = f"; it begins after {self.timeline.dropped} events of worker 0" if self.timeline.dropped else ""
            log.info(f"Trace in {self.path}, for chrome://tracing or ui.perfetto.dev{dropped}")
