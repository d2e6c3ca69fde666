"""An iteration's batches: forward and backward, until the gradients of all workers are summed.

This is the usual way; `fcaffe.solvers.sharded_batches` computes a batch shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fcaffe import log
from fcaffe.engines.base import Pending
from fcaffe.errors import SolverError
from fcaffe.net.blob import Blob
from fcaffe.net.placements import Shard
from fcaffe.solvers.control import Action, agree
from fcaffe.solvers.run import Run
from fcaffe.timeline import BACKWARD, FORWARD
from fcaffe.tree_order import sum_in_tree_order

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


class Batches:
    """Each pass is over all that this worker has of a batch; the last one's gradients leave while backward runs.

    Workers on CPUs exchange all numbers of an iteration in one message. On an asynchronous engine each number has a sum
    of its own, and the host waits for losses only when it has started backward.
    """

    def __init__(self, run: Run, nan_policy: NanPolicy) -> None:
        self.run = run
        self.nan_policy = nan_policy
        self._gathers = run.workers.size > 1 and not run.engine.asynchronous
        self._numbers: np.ndarray | None = None  # of this iteration, if they are gathered: see `_own_numbers`

    def forward_backward(self) -> np.float32:
        """Leaves the gradients of this iteration, summed over all workers, in `diff`; returns the mean loss."""
        run, pending = self.run, []
        for number in range(run.passes):
            if number:
                with run.timeline.span(BACKWARD):
                    run.net.backward()
            pending.append(self._start_forward(number))
        own = self._own_numbers(pending) if self._gathers else None  # before backward, which reuses memory of outputs
        if run.exchange.applies_momentum:  # a script may have changed it since the last step
            run.exchange.set_momentum(run.param.momentum, run.param.clip_gradients)
        with run.timeline.span(BACKWARD):
            run.net.backward(exchange=run.exchange)
        if own is not None:
            self._numbers = run.workers.gather_array(own)
        if not run.exchange.on_streams:
            run.exchange.finish()
        losses: Iterable[float] = map(self._sum, pending)
        if self._numbers is not None:
            losses = sum_in_tree_order(self._numbers[:, : run.passes])
        return _mean([self._checked(loss) for loss in losses])

    def agreed_action(self) -> Action:
        """The most urgent action that any worker requests. Collective, after the passes of an iteration."""
        if self._numbers is None:
            return agree(self.run.requested_action(), self.run.workers)
        return Action(int(self._numbers[:, self.run.passes].max()))

    def forward(self) -> np.float32:
        """The loss of one more batch."""
        return np.float32(self._checked(self._sum(self._start_forward(self.run.passes))))

    def _start_forward(self, number: int) -> Pending:
        """Run the net forward, in this pass of the iteration. Returns this worker's loss."""
        with self.run.timeline.span(FORWARD):
            return self.run.net.start_forward(moment=self.run.moment(number))

    def _own_numbers(self, losses: Sequence[Pending]) -> np.ndarray:
        """The loss of each pass, the action that signals request, and the net's outputs if they are scalars."""
        run = self.run
        outputs = run.output_values() if run.scalar_outputs else ()
        return np.concatenate([[loss.value() for loss in losses], [run.requested_action()], *outputs])

    def _sum(self, loss: Pending) -> float:
        """A loss over all workers."""
        self.run.exchange.wait_for(loss)
        return self.run.workers.sum(loss.value())

    def _checked(self, loss: float) -> float:
        """A loss over all workers. Stops the run if it is not finite and the NaN policy does not continue."""
        if not np.isfinite(np.float32(loss)):
            self.run.net.explain()
            self.nan_policy.check_loss(np.float32(loss))
        return loss

    def log_outputs(self) -> None:
        """Log the training net's outputs in the last batch, over all workers. Collective."""
        run = self.run
        if self._numbers is not None and run.scalar_outputs:
            values = list(sum_in_tree_order(self._numbers[:, run.passes + 1 :].astype(np.float32))[:, None])
        else:
            pairs = zip(run.net.outputs(), run.output_values(), strict=True)
            values = [self._over_workers(blob, own) for (_, blob, _), own in pairs]
        log.net_outputs("Train", run.net.outputs(), values)

    def _over_workers(self, blob: Blob, values: np.ndarray) -> np.ndarray:
        """An output over the whole batch, for worker 0."""
        workers = self.run.workers
        if workers.per_worker and isinstance(blob.placement, Shard):  # the workers may have unequal numbers of rows
            return np.concatenate(workers.gather(values) or [values])
        return workers.sum_array(values)


def _mean(losses: Sequence[float]) -> np.float32:
    """The mean of losses, added in float32 as in Caffe."""
    return sum(map(np.float32, losses), np.float32(0)) / np.float32(len(losses))
