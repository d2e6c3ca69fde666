"""Timing of a training: the summary at the end of its log, and its trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.net.workers import Workers
from fcaffe.output_files import replacing
from fcaffe.parallel.world import World
from fcaffe.solvers import Solver
from fcaffe.timeline import EXCHANGE, KEPT, KEPT_BY_ALL, OTHER, TRAINING, Timeline, straggler, summarize

THREADS = {TRAINING: "training", EXCHANGE: "gradient exchange"}


def begin_together(timeline: Timeline, workers: Workers) -> None:
    """Start the timelines of all workers at the same moment, up to the latency of a message. Their clocks differ."""
    for _ in range(3):  # the first may wait for a late worker, and is slower
        workers.sum(0)
    timeline.begin()


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
        lines.append(
            {
                "ph": "X",
                "name": name,
                "pid": rank,
                "tid": thread,
                "ts": round(1e6 * (begin - timeline.origin), 1),
                "dur": round(1e6 * (end - begin), 1),
                "args": {"iteration": iteration},
            }
        )
    return lines


def write(path: str, events: list[dict[str, Any]]) -> None:
    """Write the file of a trace. Raises FcaffeError."""
    with replacing(path, "trace") as temporary, open(temporary, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


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
        begin_together(self.timeline, solver.workers)
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
        everyone = solver.workers.gather(dict(self.timeline.seconds))
        for line in summarize(everyone, self.world.hosts) if everyone else []:
            log.info(line)
        if everyone and (warning := straggler(everyone, self.world.hosts)):
            log.warning(warning)
        if summary := solver.exchange.summary():
            log.info(summary)
        if not self.path:
            return
        own = events_of(self.timeline, self.world.rank, self.world.hosts)
        if gathered := solver.workers.gather(own):
            write(self.path, [event for events in gathered for event in events])
            dropped = f"; it begins after {self.timeline.dropped} events of worker 0" if self.timeline.dropped else ""
            log.info(f"Trace in {self.path}, for chrome://tracing or ui.perfetto.dev{dropped}")
