"""What becomes of a training whose loss or weights are no longer finite (`--on-nan`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError, SolverError
from fcaffe.net.bad_values import first_bad_blob
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot.carried import Point
from fcaffe.solvers.snapshot.write import save

WEIGHTS_CHECKED = 100  # iterations between looks at the weights


class NanPolicy:
    """`on_nan` is 'continue', as Caffe does; 'stop'; or 'snapshot': stop after writing the last good state.

    Values that are not finite may be on one worker alone, so all workers call these methods at the same places and
    agree.
    """

    def __init__(self, run: Run, on_nan: str) -> None:
        self.run = run
        self.on_nan = on_nan
        self._last_good: _KeptState | None = None

    @property
    def keeps_states(self) -> bool:
        return self.on_nan == "snapshot"

    @contextlib.contextmanager
    def keeping_state(self) -> Iterator[None]:
        """The state ahead of the body, the passes of an iteration, is the last good one if these raise nothing."""
        before = _KeptState(self.run) if self.keeps_states else None
        yield
        self._last_good = before

    def check_loss(self, loss: np.float32, iteration: int, bad_blob: str | None = None) -> None:
        """Stop at a loss over all workers that is not finite. `bad_blob` is the first bad one, unless the net's blobs
        are still those of the pass."""
        if self.on_nan != "continue" and not np.isfinite(loss):
            self._stop(f"loss = {log.number(float(loss))}", bad_blob or first_bad_blob(self.run.net), iteration)

    def looks_at_weights(self, due: bool) -> bool:
        """Whether `check_weights` looks at them after this iteration, or their state is kept ahead of the next one."""
        return self.on_nan != "continue" and (due or self.keeps_states or self.run.iteration % WEIGHTS_CHECKED == 0)

    def check_weights(self, due: bool) -> None:
        """Stop at a weight that is not finite, every so many iterations and if `due`: before a snapshot and at the end.

        Such a weight need not show in the loss. Statistics of BatchNorm may be bad on one worker alone.
        """
        run = self.run
        if not self.looks_at_weights(due):
            return
        if run.workers.sum(not run.engine.is_finite(run.data)):
            self._stop("a weight is not finite", first_bad_blob(run.net), run.iteration)

    def _stop(self, what: str, bad_blob: str | None, iteration: int) -> None:
        found = [bad for bad in self.run.workers.gather(bad_blob) or [] if bad]
        bad, saved = found[0] if found else "the loss itself", ""
        if self.keeps_states and self._last_good is not None:
            saved = self._save(self._last_good)
        raise SolverError(
            f"iteration {iteration}: {what}; the first value that is not finite is in {bad}"
            f"{saved}. Lower base_lr, set clip_gradients, or check the data (--on-nan continue goes on all the same)"
        )

    def _save(self, state: _KeptState) -> str:
        """Write the state as a snapshot, and say where it is, or why it could not be written."""
        state.put_back(self.run)
        try:
            return f"; the last good state is in {save(self.run)}"
        except (SnapshotError, OSError) as problem:
            return f"; the last good state could not be written ({problem})"


class _KeptState:
    """A copy, in memory, of all that a snapshot would hold."""

    def __init__(self, run: Run) -> None:
        self.data = run.data.copy()
        self.histories = [history.copy() for history in run.history]
        self.iteration, self.current_step = run.iteration, run.current_step
        self.point = Point.of(run).copy()

    def put_back(self, run: Run) -> None:
        run.data[...] = self.data
        for history, kept in zip(run.history, self.histories, strict=True):
            history[...] = kept
        run.iteration, run.current_step = self.iteration, self.current_step
        self.point.put_back(run)
