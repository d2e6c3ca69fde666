"""What a net knows of the other workers where the shards of a batch are computed one by one."""

from __future__ import annotations

from fcaffe.data.share import Share, split_batch
from fcaffe.errors import UsageError
from fcaffe.net.workers import Workers


class Shards(Workers):
    """`size` shards of each batch, both powers of two, of which each of the `workers` has equally many, one after the
    other in the batch.

    A pass is over one shard, whose number is `rank`; so a net sees as many workers as there are shards. It knows of the
    others how many samples they have, and nothing else: a layer that needs to know more refuses to be in such a net
    (`Layer.refuse_shards`).
    """

    def __init__(self, workers: Workers, size: int) -> None:
        self.size = size
        number = size // workers.size
        self.own = range(workers.rank * number, (workers.rank + 1) * number)  # this worker's
        self.rank = self.own[0]
        self.in_shards = size > 1
        self.total = 0  # samples in a batch, as the layers that read say

    @property
    def splitting(self) -> str:
        return f"which --reproducible {self.size} cuts into shards; leave that out"

    def share(self, batch_size: int) -> Share:
        if batch_size < self.size:
            most = 1 << (batch_size.bit_length() - 1)
            raise UsageError(
                f"--reproducible {self.size}: a batch of {batch_size} cannot be cut into so many shards: use a power "
                f"of two up to {most}"
            )
        self.total = batch_size
        first, last = (split_batch(batch_size, shard, self.size) for shard in (self.own[0], self.own[-1]))
        return Share(first.first, last.first + last.count - first.first, batch_size)

    def begin_pass(self, shard: int, share: Share) -> Share:
        """The coming pass is over this shard of a batch of which the worker has that share; returns its samples."""
        self.rank = shard
        return split_batch(share.total, shard, self.size)

    def rows(self, share: Share) -> slice:
        shard = split_batch(share.total, self.rank, self.size)
        return slice(shard.first - share.first, shard.first - share.first + shard.count)

    def sum(self, value: float) -> float:
        """Of what goes with the number of samples, which is all that a layer in such a net may ask for."""
        return value * self.total / split_batch(self.total, self.rank, self.size).count if self.total else value
