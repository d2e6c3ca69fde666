"""Timing of a training: the summary at the end of its log, and its trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.jobs.world import World
from fcaffe.output_files import replacing, starting
from fcaffe.solvers import Observer, Solver
from fcaffe.timeline import EXCHANGE, KEPT, KEPT_BY_ALL, OTHER, TRAINING, Timeline, straggler, summarize, work_of

TRACE = starting("trace", rb'\{"traceEvents"')
THREADS = {TRAINING: "training", EXCHANGE: "gradient exchange"}
CHECKED_EVERY = 20  # iterations
LONGEST_COUNT = 300.0  # seconds of work after which a worker that was fast until then can be warned of


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

    looks = False

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
