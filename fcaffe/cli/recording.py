"""The observers of --report and --tensorboard, which record a training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fcaffe import log
from fcaffe.solvers import Solver


@contextlib.contextmanager
def recorded(solver: Solver, solver_file: str, report: str, tensorboard: str) -> Iterator[None]:
    """Record the training in the body of the `with`. Worker 0 writes the page `report` and the folder `tensorboard`."""
    if solver.workers.rank or not (report or tensorboard):
        yield
        return
    with contextlib.ExitStack() as stack:
        if tensorboard:
            from fcaffe.tools.tensorboard import TensorBoard

            events = TensorBoard(tensorboard, solver)
            stack.callback(events.close)
            solver.observers.append(events)
        if report:
            from fcaffe.tools.report.recorder import Recorder

            recorder = Recorder(report, solver, solver_file)
            solver.observers.append(recorder)
            stack.push(lambda kind, error, _: recorder.end("" if error is None else _words(error)))
            log.info(f"A page about this training is in {report}; it renews itself while open")
        yield


def _words(error: BaseException) -> str:
    return f"Ended by an error: {error}" if isinstance(error, Exception) else "Interrupted."
