"""Batches computed shard by shard, so that the weights have the same bits on any number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.net.shards import Shards
from fcaffe.timeline import BACKWARD, FORWARD
from fcaffe.tree_order import TreeSum, add_in_tree_order

if TYPE_CHECKING:
    from fcaffe.solvers.solver import Solver


class ShardedBatches:
    """The passes of a solver whose batches are cut into `shards`: each goes forward and backward alone.

    Gradients, losses and outputs are added up in one binary tree over the shards. A worker's shards are a subtree; what
    is above it the exchange adds up, whose reduction must keep to the tree as well. For the same bits the arithmetic
    must be the same everywhere too: one thread (others would cut products elsewhere), noise from the counter stream,
    machines of one kind.
    """

    def __init__(self, solver: Solver, shards: Shards) -> None:
        if solver.context.noise != "counter":
            raise SolverError(
                "shards need noise that does not depend on the number of workers: the counter stream (--rng counter)"
            )
        self.solver = solver
        self.shards = shards
        self.outputs: list[np.ndarray] = []  # of the net in the last batch, over all shards
        self._gradients = TreeSum(shards.number)
        self._refuse_outputs_of_samples()

    def forward_backward(self) -> np.float32:
        """Leaves the gradients of this iteration's batches in the solver's `diff`; returns the sum of their losses."""
        solver = self.solver
        loss = np.float32(0)
        total = None
        for number in range(solver.passes):
            loss += self.forward(number, backward=True)
            solver.exchange.begin(solver.diff)
            solver.exchange.finish()
            if number == 0 and solver.passes > 1:
                total = solver.diff.copy()
            elif total is not None:
                total += solver.diff
        if total is not None:
            solver.diff[...] = total
        return loss

    def forward(self, number: int = 0, backward: bool = False) -> np.float32:
        """The loss of batch `number` of this iteration; with `backward`, this worker's gradients are in `diff`."""
        solver, context = self.solver, self.solver.context
        results, bad = [], None
        for shard in self.shards.parts(solver.share):
            context.begin_pass(solver.iteration, number * shard.total + shard.first)
            with solver.timeline.span(FORWARD):
                loss = solver.net.forward()
            results.append(np.array([loss, *np.concatenate([[], *solver.output_values()])]))
            if not np.isfinite(loss):
                bad = bad or solver.net.first_bad_blob()
            if backward:
                solver.net.parameters.clear_diffs()
                with solver.timeline.span(BACKWARD):
                    solver.net.backward()
                self._gradients.add(solver.diff)
        return self._add_up(results, bad)

    def _add_up(self, results: list[np.ndarray], bad: str | None) -> np.float32:
        """The loss over all shards; the outputs are kept."""
        solver = self.solver
        mine = np.empty_like(results[0])
        add_in_tree_order(np.array(results), mine)
        sums = solver.workers.sum_array(mine)
        loss = np.float32(sums[0])
        if solver.on_nan != "continue" and not np.isfinite(loss):
            solver.stop_at_nan(f"loss = {log.number(loss)}", bad)
        ends = np.cumsum([blob.count for _, blob, _ in solver.net.outputs()], dtype=int)
        self.outputs = [values.astype(np.float32) for values in np.split(sums[1:], ends[:-1])]
        return loss

    def _refuse_outputs_of_samples(self) -> None:
        """Shards of different sizes can be added up only if what is added has the same size."""
        total = self.solver.share.total
        if total % self.shards.size == 0:
            return
        for name, blob, _ in self.solver.net.outputs():
            if blob.shape[:1] == (self.solver.net.batch_size,):
                raise SolverError(
                    f"the shards of a batch of {total} are uneven with --reproducible {self.shards.size}, and output "
                    f'"{name}" of the training net has values for each sample, which cannot be added up: let a Silence '
                    "layer take it"
                )
