"""Batches that are computed shard by shard, so that the weights have the same bits on any number of workers."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from fcaffe import log
from fcaffe.errors import SolverError
from fcaffe.net.exchange import GradientExchange
from fcaffe.net.net import Net
from fcaffe.share import split_batch
from fcaffe.solvers.batches import Batches, NanPolicy
from fcaffe.solvers.run import Run
from fcaffe.solvers.shards import Shards
from fcaffe.solvers.trust_ratio import BLOCK, blocks_of
from fcaffe.timeline import BACKWARD, FORWARD, SHARDS
from fcaffe.tree_order import Sums, Tree, copy_into, part_of_sums, sum_in_tree_order


class Passes(GradientExchange):
    """The passes of one thread: over some consecutive shards of a worker, one after the other, by a net of its own.

    As the exchange of the net it reports how far the backward pass of the last shard has come.

    Attributes:
        gradients: Flat, those of the net.
        sums: Sums over all its shards but the last one, whose gradients are in `gradients`.
        final_from: The offset from which on the gradients of the last shard are final.
    """

    on_streams = False

    def __init__(self, net: Net, own: range, report: Callable[[Passes, int], None]) -> None:
        self.net, self.own, self._report = net, own, report
        self.gradients = net.parameters.diff
        self.sums: Sums = {}
        self.final_from = math.inf

    def clear(self) -> None:
        self.sums.clear()
        self.final_from = math.inf

    def ready(self, start: int) -> None:
        self._report(self, start)

    def add(self, tree: Tree, shard: int) -> None:
        """Add the gradients of a shard that is not the last one; their memory is the next one's."""
        leaf = shard, shard + 1
        tree.join(self.sums, {leaf: self.gradients})
        if leaf in self.sums:
            self.sums[leaf] = self.gradients.copy()


class ShardedBatches(Batches):
    """Batches are cut into `shards`, each of which goes forward and backward alone, several at a time on threads.

    Gradients, losses and outputs are added up in one binary tree over the shards. A worker adds up the nodes whose
    shards it all has, and the exchange does the rest, by a reduction that keeps to the tree as well. During the
    backward pass of the last shard the exchange gets what is final. For the same bits the arithmetic must be the same
    everywhere too: each product by one thread (others would cut it elsewhere), noise from the counter stream, machines
    of one kind.
    """

    def __init__(self, run: Run, nan_policy: NanPolicy, shards: Shards) -> None:
        if run.context.noise != "counter":
            raise SolverError(
                "shards need noise that does not depend on the number of workers: the counter stream (--rng counter)"
            )
        super().__init__(run, nan_policy)
        self.shards = shards
        parts = [split_batch(len(shards.own), thread, len(run.nets)) for thread in range(len(run.nets))]
        self.passes = [
            Passes(net, shards.own[part.first : part.first + part.count], self._add_final)
            for net, part in zip(run.nets, parts, strict=True)
        ]
        self._threads = ThreadPoolExecutor(max(len(parts) - 1, 1), "shards")
        self._lock = threading.Lock()  # of the sum of gradients
        self._summed_from = 0  # the offset from which on this worker's gradients are summed
        self._results: list[np.ndarray] = []  # loss and outputs of each shard
        self._bad: str | None = None  # the first blob that is not finite
        self._outputs: list[np.ndarray] = []  # of the net in the last batch, over all shards

    def forward_backward(self) -> np.float32:
        run, loss, total = self.run, np.float32(0), np.empty(0)
        for number in range(run.passes):
            loss += self._compute(number, backward=True)
            if number:
                run.diff += total
            if number + 1 < run.passes:
                total = run.diff.copy()
        return loss / np.float32(run.passes)

    def forward(self) -> np.float32:
        """The loss of one more batch."""
        return self._compute(self.run.passes)

    def log_outputs(self) -> None:
        log.net_outputs("Train", self.run.net.outputs(), self._outputs)

    def _compute(self, number: int, backward: bool = False) -> np.float32:
        """The loss of batch `number` of this iteration; with `backward`, the sum of all gradients is in `diff`."""
        run = self.run
        self.shards.begin()
        self._results, self._bad = [np.empty(0)] * len(self.shards.own), None
        self._summed_from = run.diff.size
        if backward:
            run.exchange.begin(run.gradients)
        for passes in self.passes:
            passes.clear()
        first, *others = self.passes
        pending = [self._threads.submit(self._compute_shards, passes, number, backward) for passes in others]
        after_another_error = contextlib.suppress(threading.BrokenBarrierError)
        try:
            with after_another_error:
                self._compute_shards(first, number, backward)
        finally:
            with run.timeline.span(SHARDS):
                wait(pending)
        for one in pending:
            with after_another_error:
                one.result()
        if backward:
            run.exchange.finish()
        return self._add_up_results()

    def _compute_shards(self, passes: Passes, number: int, backward: bool) -> None:
        with self.shards.computing():
            for shard in passes.own:
                self._compute_shard(passes, shard, number, backward)

    def _compute_shard(self, passes: Passes, shard: int, number: int, backward: bool) -> None:
        run, net = self.run, passes.net
        self.shards.begin_pass(shard)
        with run.timeline.span(FORWARD):
            loss = net.forward(moment=run.moment(number))
        self._results[shard - self.shards.own[0]] = np.array([loss, *np.concatenate([[], *run.output_values(net)])])
        if backward:
            net.parameters.clear_diffs()
            self._run_backward(passes, shard)
        if self.nan_policy.stops and not np.isfinite(loss):  # after backward: the search changes the memory plan
            self._bad = self._bad or net.first_bad_blob()

    def _run_backward(self, passes: Passes, shard: int) -> None:
        net, is_last = passes.net, shard == passes.own[-1]
        follows = is_last and not self.run.engine.asynchronous
        with self.run.timeline.span(BACKWARD):
            net.backward(exchange=passes if follows else None)
        if is_last:
            self._add_final(passes, 0)
        else:
            with self.run.timeline.span(SHARDS):
                passes.add(self.shards.tree, shard)

    def _add_final(self, passes: Passes, start: int) -> None:
        """This thread's gradients are final from offset `start` on: hand over what is final in all threads."""
        run = self.run
        with self._lock, run.timeline.span(SHARDS):
            passes.final_from = start
            final_from = max(one.final_from for one in self.passes)
            if final_from and self._summed_from - final_from < BLOCK:
                return
            for block in blocks_of(slice(int(final_from), self._summed_from)):
                self._add_up(block)
            self._summed_from = int(final_from)
            run.exchange.ready(self._summed_from)

    def _add_up(self, flat: slice) -> None:
        """Add up a slice of the flat gradients over this worker's shards, into its slice of the rows of `gradients`."""
        tree, sums = self.shards.tree, Sums()
        for passes in self.passes:
            tree.join(sums, part_of_sums(passes.sums, flat))
            last = {(passes.own[-1], passes.own[-1] + 1): passes.gradients[flat]}
            tree.join(sums, last, into_others=passes is self.passes[0])
        nodes = self.shards.nodes[self.run.workers.rank]
        for row, node in reversed(list(enumerate(nodes))):  # the first row may still have the sum of another node
            copy_into(self.run.gradients[row][flat], sums[node])

    def _add_up_results(self) -> np.float32:
        """The loss over all shards; the outputs are kept."""
        run = self.run
        sums = sum_in_tree_order(run.workers.gather_rows(np.stack(self._results), self.shards.counts))
        loss = np.float32(sums[0])
        self.nan_policy.check_loss(loss, self._bad)
        ends = np.cumsum([own.size for own in run.output_values()], dtype=int)
        self._outputs = [values.astype(np.float32) for values in np.split(sums[1:], ends)[:-1]]
        return loss
