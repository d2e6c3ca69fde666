"""The timing of a training: the summary at the end of its log, and the file of --trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.parallel.world import World
from fcaffe.solvers import Solver
from fcaffe.timeline import KEPT, KEPT_BY_ALL, OTHER, Timeline, summarize
from fcaffe.tools import trace


class Timing:
    """The timeline of this worker. `path` is the file of the trace, or "". FcaffeError if that is not writable."""

    def __init__(self, path: str, world: World) -> None:
        self.path = path
        self.world = world
        if path and world.rank == 0:
            trace.write(path, [])  # so that a wrong path ends the command before the training
        self.timeline = Timeline(min(KEPT, KEPT_BY_ALL // world.size) if path else 0)

    @contextlib.contextmanager
    def of(self, solver: Solver) -> Iterator[None]:
        """Time the training in the body of the `with`, then log and write. After an error, write worker 0's trace."""
        trace.begin_together(self.timeline, solver.workers)
        try:
            with self.timeline.span(OTHER):
                yield
        except BaseException:
            if self.path and self.world.rank == 0:
                with contextlib.suppress(FcaffeError):  # the first error says more
                    trace.write(self.path, trace.events_of(self.timeline, 0, self.world.hosts))
            raise
        self._tell(solver)

    def _tell(self, solver: Solver) -> None:
        everyone = solver.workers.gather(dict(self.timeline.seconds))
        for line in summarize(everyone, self.world.hosts) if everyone else []:
            log.info(line)
        if summary := solver.exchange.summary():
            log.info(summary)
        if not self.path:
            return
        own = trace.events_of(self.timeline, self.world.rank, self.world.hosts)
        if gathered := solver.workers.gather(own):
            trace.write(self.path, [event for events in gathered for event in events])
            dropped = f"; it begins after {self.timeline.dropped} events of worker 0" if self.timeline.dropped else ""
            log.info(f"Trace in {self.path}, for chrome://tracing or ui.perfetto.dev{dropped}")
