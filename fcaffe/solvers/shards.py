"""Shards: the parts of a batch that are computed on their own, as the workers of a net; and nets for their threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net.layer import Held, Layer
from fcaffe.net.net import Net
from fcaffe.net.node import Node
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.share import Share, split_batch
from fcaffe.threads import shard_threads
from fcaffe.tree_order import nodes_of_workers


class Shards(Workers):
    """`size` shards of each batch. Each of the `workers` has consecutive shards, as many as the others or one less.

    A pass is over one shard, whose number is `rank`; so a net sees as many workers as there are shards. Usually a net
    computes several shards one after the other. A layer that needs values of the others asks for shards `in_step`: each
    shard has a net and a thread, and sums and gatherings of values of all shards are barriers. As many threads compute
    at a time as there are `cores`.

    `own` are this worker's shards, `counts` those of each worker, and a thread holds one of `cores` while it computes.
    """

    def __init__(self, workers: Workers, size: int) -> None:
        self.size = size
        self.workers = workers
        self.tree, self.nodes = nodes_of_workers(size, workers.size)
        self.counts = [split_batch(size, worker, workers.size).count for worker in range(workers.size)]
        first = split_batch(size, workers.rank, workers.size).first
        self.own = range(first, first + self.counts[workers.rank])
        self.passes = len(self.own)
        self.in_shards = size > 1
        self.in_step = False
        self.cores = threading.Semaphore(min(shard_threads(), self.passes))
        self._barrier = threading.Barrier(self.passes)
        self._contributions: list[Any] = [None] * self.passes  # of the shards to a gathering
        self._gathered: Any = None
        self._passes = threading.local()

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The shard of this thread's pass."""
        return getattr(self._passes, "shard", self.own[0])

    @property
    def is_first(self) -> bool:
        return self.rank == self.own[0]

    def run_shards_in_step(self) -> None:
        self.in_step = self.in_shards

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Its body computes a shard. An error in it ends the passes that wait for this one."""
        with self.cores:
            try:
                yield
            except BaseException:
                self._barrier.abort()
                raise

    def begin(self) -> None:
        """Call it before the passes of a batch."""
        self._barrier.reset()

    def barrier(self, then: Callable[[], None] | None = None) -> None:
        """Wait for the other passes of this worker. Then the first one calls `then`, while the others wait."""
        self._wait()
        if then is not None:
            if self.is_first:
                then()
            self._wait()

    def _wait(self) -> None:
        """Wait for the other passes of this worker, and let others have the core."""
        self.cores.release()
        try:
            self._barrier.wait()
        finally:
            self.cores.acquire()

    def once(self, change: Callable[[], None], read_now: bool) -> None:
        if self.in_step and read_now:
            self.barrier(change)
        elif self.is_first:
            change()

    @property
    def splitting(self) -> str:
        return f"which --reproducible {self.size} cuts into shards; leave that out"

    def share(self, batch_size: int) -> Share:
        first, last = (split_batch(batch_size, shard, self.size) for shard in (self.own[0], self.own[-1]))
        return Share(first.first, last.first + last.count - first.first, batch_size)

    def begin_pass(self, shard: int) -> None:
        """Let the next pass of this thread compute this shard."""
        self._passes.shard = shard

    def rows(self, share: Share) -> slice:
        shard = split_batch(share.total, self.rank, self.size)
        return slice(shard.first - share.first, shard.first - share.first + shard.count)

    def gather_array(self, values: Any) -> Any:
        """The arrays of all shards, in their order."""
        self._contributions[self.rank - self.own[0]] = values
        self.barrier(self._gather)
        return self._gathered

    def _gather(self) -> None:
        self._gathered = self.workers.gather_rows(np.stack(self._contributions), self.counts)


# --- twins: further nets over the same parameters and readers, for passes on other threads ----------------------------


def twin_of(net: Net, param: Any) -> Net:
    """A net of the same NetParameter with an engine and activations of its own, for one other thread.

    The layers that read are those of `net` and serve both. The parameters have no values of their own: let both nets
    have the same flat buffer (`Parameters.flatten`), that of `net` last.
    """
    readers = {node.layer.key: node for node in net.nodes if _reads(node)}
    context = replace(net.context, engine=net.context.engine.another(), random=Zeros(), readers=readers)
    context.share = net.context.share
    with log.quiet(3):
        twin = Net(param, context)
    for ours, theirs in zip(net.layers, twin.layers, strict=True):
        if ours.held is Held.ALIKE:
            for name, blob in theirs.state_blobs().items():
                blob.share_data(ours.state_blobs()[name])
    return twin


def why_no_twins(net: Net, in_step: bool) -> str:
    """The reason why twins cannot be used: the first layer that carries state from pass to pass, besides the readers.

    With `in_step` each shard has a net of its own. So layers may carry the state of the shard's streams, or a state in
    blobs that is the same for all shards, which twins share. Empty if twins can be used.
    """
    if net.context.engine.asynchronous:
        return "an engine for GPUs"
    for layer in (node.layer for node in net.nodes if not _reads(node)):
        alike = layer.held is Held.ALIKE and layer.state().keys() == layer.state_blobs().keys()
        has_state = bool(layer.state()) and not (in_step and (alike or layer.held is Held.STREAMS))
        if has_state or type(layer).close is not Layer.close:
            return f'layer "{layer.name}" ({layer.type}), which has a state'
    return ""


def _reads(node: Node) -> bool:
    return node.layer.traits.reads_host and not (node.bottoms or node.layer.type == "DummyData")


class Zeros(CaffeRandom):
    """Draws nothing but zeros, for parameters that are overwritten: filling large ones takes seconds."""

    def __init__(self) -> None:
        super().__init__(0)

    def uniform(self, low: float, high: float, n: int) -> np.ndarray:
        return np.zeros(n, np.float32)

    def normal(self, mean: float, std: float, n: int) -> np.ndarray:
        return np.zeros(n, np.float32)
