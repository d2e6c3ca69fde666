"""An iteration's batches: forward and backward, until the gradients of all workers are summed.

This is the usual way; `fcaffe.solvers.sharded_batches` computes a batch shard by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fcaffe import log
from fcaffe.engines.base import Pending
from fcaffe.net.blob import Blob
from fcaffe.net.placements import Shard
from fcaffe.solvers.actions import Action, agree
from fcaffe.solvers.nan_policy import NanPolicy
from fcaffe.solvers.run import Run
from fcaffe.solvers.update import Update
from fcaffe.timeline import BACKWARD, FORWARD
from fcaffe.tree_order import sum_in_tree_order


class WholeBatches:
    """Each pass is over all that this worker has of a batch; the last one's gradients leave while backward runs.

    The workers gather all numbers of an iteration in one small array: losses, what signals ask for, outputs. On an
    asynchronous engine, each has a sum of its own, and the host waits for losses only when it has started backward.
    """

    def __init__(self, run: Run, nan_policy: NanPolicy, requested_action: Callable[[], Action], update: Update) -> None:
        self.run = run
        self.update = update
        self.nan_policy = nan_policy
        self.requested_action = requested_action
        self._told: np.ndarray | None = None  # the numbers of all workers in this iteration, a row for each
        self._passes = 0  # of this iteration

    def forward_backward(self) -> np.float32:
        """Leaves the gradients of this iteration's passes, over all workers, in `diff`; returns the mean loss."""
        run, pending = self.run, []
        share, passes = run.share, run.passes
        self._passes = passes
        together = run.workers.size > 1 and not run.engine.asynchronous
        for number in range(passes):
            run.context.begin_pass(run.iteration, number * share.total + share.first)
            pending.append(self._start_forward())
            if number < passes - 1:
                with run.timeline.span(BACKWARD):
                    run.net.backward()
        if together:
            agreed = [list(Action).index(self.requested_action()), run.exchange.front_position]
            outputs = run.output_values() if run.scalar_outputs else []
            own = np.concatenate([[loss.value() for loss in pending], agreed, *outputs])
        if run.exchange.takes_momentum:  # a script may have changed it since the last step
            run.exchange.take_momentum(run.param.momentum, run.param.clip_gradients)
        with run.timeline.span(BACKWARD):
            run.net.backward(exchange=run.exchange)
        self._told = run.workers.gather_array(own) if together else None
        if self._told is not None:
            run.exchange.agree_on_front(int(self._told[:, passes + 1].max()))
        if not run.exchange.on_streams:
            run.exchange.finish_front()  # `update` waits for the other buckets
        losses = self._sums(slice(passes), np.float64) if together else map(self._sum, pending)
        return _mean([self._checked(loss) for loss in losses])

    def agreed_action(self) -> Action:
        """The most far-reaching action that any worker was asked for; all workers must call this after the passes."""
        if self._told is None:
            return agree(self.requested_action(), self.run.workers)
        return list(Action)[int(self._told[:, self._passes].max())]

    def forward(self) -> np.float32:
        """The loss of one more batch."""
        self.run.context.begin_pass(self.run.iteration, self.run.context.first_sample)
        return np.float32(self._checked(self._sum(self._start_forward())))

    def _start_forward(self) -> Pending:
        """Run the net forward. Returns this worker's loss."""
        with self.run.timeline.span(FORWARD):
            return self.run.net.start_forward(need=self.update.need)

    def _sum(self, loss: Pending) -> float:
        """A loss over all workers."""
        self.run.exchange.wait_for(loss)
        return self.run.workers.sum(loss.value())

    def _checked(self, loss: float) -> float:
        """A loss over all workers, if it is finite or the NaN policy continues all the same."""
        if not np.isfinite(np.float32(loss)):
            self.run.net.explain()
            self.nan_policy.check_loss(np.float32(loss), self.run.iteration)
        return loss

    def _sums(self, numbers: slice, dtype: type) -> np.ndarray:
        """The sums over the workers of some of the numbers that they have gathered."""
        assert self._told is not None
        everyones: np.ndarray = self._told[:, numbers].astype(dtype)
        return sum_in_tree_order(everyones)

    def log_outputs(self) -> None:
        """Show the training net's outputs in the last batch, over all workers, all of whom must call this."""
        run = self.run
        if self._told is not None and run.scalar_outputs:
            values = list(self._sums(slice(self._passes + 2, None), np.float32)[:, None])
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
    """Added in float32, as Caffe does."""
    return sum(map(np.float32, losses), np.float32(0)) / np.float32(len(losses))
