"""Handles a loss or weights that are not finite (`--on-nan`)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError, SolverError
from fcaffe.solvers.run import Run

CHECKED_EVERY = 100  # iterations between checks of the weights, and between copies of the state


class NanPolicy:
    """`on_nan` is 'continue', as in Caffe; 'stop'; or 'snapshot', which writes the last good state before it stops.

    That state is a copy in memory, from before an iteration whose loss was finite. A copy of all weights in each
    iteration would take time and memory bandwidth, so it is renewed every `CHECKED_EVERY` iterations.

    Only one worker may have values that are not finite, so these methods are collective.
    """

    def __init__(self, run: Run, on_nan: str) -> None:
        self.run = run
        self.on_nan = on_nan
        self._last_good: _SavedState | None = None

    @property
    def stops(self) -> bool:
        """Whether a value that is not finite ends the run."""
        return self.on_nan != "continue"

    @contextlib.contextmanager
    def saving_state(self) -> Iterator[None]:
        """Copy the state before the body, if due. It is good if the body, an iteration's passes, raises nothing."""
        due = self._last_good is None or self.run.iteration % CHECKED_EVERY == 0
        before = _SavedState(self.run) if due and self.on_nan == "snapshot" else None
        yield
        self._last_good = before or self._last_good

    def check_loss(self, loss: np.float32, iteration: int, bad_blob: str | None = None) -> None:
        """Stop if the loss over all workers is not finite.

        `bad_blob` names the first blob that is not finite; None if the net's blobs are still those of the pass.
        """
        if self.stops and not np.isfinite(loss):
            self._stop(f"loss = {log.number(float(loss))}", bad_blob or self.run.net.first_bad_blob(), iteration)

    def checks_weights(self, due: bool) -> bool:
        """Whether `check_weights` reads the weights after this iteration, or the next iteration copies them first."""
        return self.stops and (due or self.run.iteration % CHECKED_EVERY == 0)

    def check_weights(self, due: bool) -> None:
        """Stop at a weight that is not finite, every so many iterations and if `due`: before a snapshot and at the end.

        Such a weight need not show in the loss. Statistics of BatchNorm may be bad on one worker alone.
        """
        run = self.run
        if not self.checks_weights(due):
            return
        if run.workers.sum(not run.engine.is_finite(run.data)):
            self._stop("a weight is not finite", run.net.first_bad_blob(), run.iteration)

    def _stop(self, what: str, bad_blob: str | None, iteration: int) -> None:
        found = [bad for bad in self.run.workers.gather(bad_blob) or [] if bad]
        bad, saved = found[0] if found else "the loss itself", ""
        if self._last_good is not None:
            saved = self._save(self._last_good)
        raise SolverError(
            f"iteration {iteration}: {what}; the first value that is not finite is in {bad}"
            f"{saved}. Lower base_lr, set clip_gradients, or check the data (--on-nan continue goes on all the same)"
        )

    def _save(self, state: _SavedState) -> str:
        """Write the state as a snapshot; returns its path, or why it could not be written, for a message."""
        from fcaffe.solvers.snapshot.write import save

        state.restore_to(self.run)
        try:
            return f"; the last good state is in {save(self.run)}"
        except (SnapshotError, OSError) as problem:
            return f"; the last good state could not be written ({problem})"


class _SavedState:
    """A copy in memory of everything that a snapshot holds."""

    def __init__(self, run: Run) -> None:
        from fcaffe.solvers.snapshot.carried import Point

        self.data = run.data.copy()
        self.histories = [history.copy() for history in run.history]
        self.iteration, self.current_step = run.iteration, run.current_step
        self.point = copy.deepcopy(Point.of(run))

    def restore_to(self, run: Run) -> None:
        run.data[...] = self.data
        for history, saved in zip(run.history, self.histories, strict=True):
            history[...] = saved
        run.iteration, run.current_step = self.iteration, self.current_step
        self.point.put_back(run)
