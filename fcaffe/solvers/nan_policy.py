"""Handles a loss or weights that are not finite (`--on-nan`)."""

from __future__ import annotations

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.solvers.run import Run

CHECKED_EVERY = 100  # iterations between checks of the weights


class NanPolicy:
    """`on_nan` is 'continue', as in Caffe, or 'stop'.

    Only one worker may have values that are not finite, so these methods are collective.
    """

    def __init__(self, run: Run, on_nan: str) -> None:
        self.run = run
        self.on_nan = on_nan

    @property
    def stops(self) -> bool:
        """Whether a value that is not finite ends the run."""
        return self.on_nan != "continue"

    def check_loss(self, loss: np.float32, bad_blob: str | None = None) -> None:
        """Stop if the loss over all workers is not finite.

        `bad_blob` names the first blob that is not finite; None if the net's blobs are still those of the pass.
        """
        if self.stops and not np.isfinite(loss):
            self._stop(f"loss = {log.number(float(loss))}", bad_blob or self.run.net.first_bad_blob())

    def check_weights(self, due: bool) -> None:
        """Stop at a weight that is not finite, every so many iterations and if `due`: before a snapshot and at the end.

        Such a weight need not show in the loss. Statistics of BatchNorm may be bad on one worker alone.
        """
        run = self.run
        if not self.stops or not (due or run.iteration % CHECKED_EVERY == 0):
            return
        if run.workers.sum(not run.engine.is_finite(run.data)):
            self._stop("a weight is not finite", run.net.first_bad_blob())

    def _stop(self, what: str, bad_blob: str | None) -> None:
        found = [bad for bad in self.run.workers.gather(bad_blob) or [] if bad]
        raise SolverError(
            f"iteration {self.run.iteration}: {what}; the first value that is not finite is in "
            f"{found[0] if found else 'the loss itself'}. Lower base_lr, set clip_gradients, or check the data "
            "(--on-nan continue goes on all the same)"
        )
