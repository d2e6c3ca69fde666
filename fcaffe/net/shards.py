"""What a net knows of the other workers where the shards of a batch are computed one by one."""

from __future__ import annotations

import threading

from fcaffe.data.share import Share, split_batch
from fcaffe.errors import UsageError
from fcaffe.net.workers import Workers
from fcaffe.tree_order import Node, Tree

MOST = 4096  # shards


class Shards(Workers):
    """`size` shards of each batch, of which each of the `workers` has consecutive ones, as many as others or one less.

    A pass is over one shard, whose number is `rank`; so a net sees as many workers as there are shards. It knows of the
    others how many samples they have, and nothing else: a layer that needs to know more refuses to be in such a net
    (`Layer.refuse_shards`). Several threads may each run a pass.

    Attributes:
        own: This worker's shards.
        counts: How many shards each worker has.
        tree, nodes: See `nodes_of_workers`.
    """

    def __init__(self, workers: Workers, size: int) -> None:
        self.size = size
        self.tree, self.nodes = nodes_of_workers(size, workers.size)
        self.counts = [split_batch(size, worker, workers.size).count for worker in range(workers.size)]
        first = split_batch(size, workers.rank, workers.size).first
        self.own = range(first, first + self.counts[workers.rank])
        self.in_shards = size > 1
        self.total = 0  # samples in a batch, as the layers that read say
        self._passes = threading.local()

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The shard of this thread's pass."""
        return getattr(self._passes, "shard", self.own[0])

    @property
    def splitting(self) -> str:
        return f"which --reproducible {self.size} cuts into shards; leave that out"

    def share(self, batch_size: int) -> Share:
        if batch_size < self.size:
            raise UsageError(
                f"--reproducible {self.size}: a batch of {batch_size} cannot be cut into so many shards: use at most "
                f"{batch_size}"
            )
        self.total = batch_size
        first, last = (split_batch(batch_size, shard, self.size) for shard in (self.own[0], self.own[-1]))
        return Share(first.first, last.first + last.count - first.first, batch_size)

    def samples_of(self, worker: int, total: int) -> int:
        """How many samples of a batch of `total` the shards of a worker have."""
        first = sum(self.counts[:worker])
        return sum(split_batch(total, shard, self.size).count for shard in range(first, first + self.counts[worker]))

    def begin_pass(self, shard: int, share: Share) -> Share:
        """The coming pass of this thread is over this shard of a batch of which the worker has that share; returns its
        samples."""
        self._passes.shard = shard
        return split_batch(share.total, shard, self.size)

    def rows(self, share: Share) -> slice:
        shard = split_batch(share.total, self.rank, self.size)
        return slice(shard.first - share.first, shard.first - share.first + shard.count)

    def sum(self, value: float) -> float:
        """Of what goes with the number of samples, which is all that a layer in such a net may ask for."""
        return value * self.total / split_batch(self.total, self.rank, self.size).count if self.total else value


def nodes_of_workers(size: int, workers: int) -> tuple[Tree, list[list[Node]]]:
    """The tree in which so many shards are added up, and the nodes that cover the shards of each worker."""
    tree = Tree(size)
    shares = [split_batch(size, worker, workers) for worker in range(workers)]
    return tree, [tree.cover(share.first, share.first + share.count) for share in shares]
