"""Workers: the other ranks that train a net, as the net sees them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from fcaffe.errors import UsageError
from fcaffe.share import Share, split_batch
from fcaffe.tree_order import sum_in_tree_order


class Workers:
    """The workers among which each batch is split. This base communicates with none, as a single worker."""

    rank: int = 0
    size: int = 1
    in_shards: bool = False  # a pass is over one shard of the batch; see Shards
    sums_on_streams: bool = False  # the host waits for no sum of an array of float32 on a GPU
    per_worker: bool = False  # each has a whole batch, so the global batch is `size` times as large
    passes: int = 1  # number of passes in which this worker computes its part of a batch

    def share(self, batch_size: int) -> Share:
        """This worker's part of the batch that a layer's `batch_size` asks for."""
        return split_batch(batch_size * self.size if self.per_worker else batch_size, self.rank, self.size)

    def rows(self, share: Share) -> slice:
        """The samples of this worker's share that the current pass computes."""
        return slice(0, share.count)

    @property
    def splitting(self) -> str:
        """Part of an error about a layer that cannot be split: what splits it, and the remedy."""
        return f"which {self.size} workers would split; --batch per-worker gives each worker a whole batch of its own"

    def part(self, samples: int) -> Share:
        """The samples of a split batch of this size that the current pass computes."""
        return Share(0, samples, samples) if self.per_worker else split_batch(samples, self.rank, self.size)

    @functools.cached_property
    def single(self) -> Workers:
        """This worker without the others, whose sums are over its own values."""
        return SingleWorker(self)

    def run_shards_in_step(self) -> None:
        """A layer calls this in `setup` if its sums must cover all shards."""

    def once(self, change: Callable[[], None], read_now: bool) -> None:
        """See `Layer.once`."""
        change()

    def sum(self, value: float) -> float:
        """A number summed over all workers. Collective."""
        return float(self.sum_array(np.array([float(value)]))[0])

    def sum_array(self, values: Any) -> Any:
        """A small array summed over all workers, in a fixed order, so that all get the same bits."""
        return sum_in_tree_order(self.gather_array(values))

    def gather_array(self, values: Any) -> Any:
        """The small arrays of all workers, of one shape, in the order of ranks: (size, *shape). All must call this."""
        return values[None]

    def gather_rows(self, values: Any, counts: Sequence[int]) -> Any:
        """The rows of all workers in one array. `counts`: each worker's. All must call this."""
        if len(counts) == 1:
            return values
        rows = np.zeros_like(values, shape=(max(counts), *values.shape[1:]), order="C")
        rows[: len(values)] = values
        return np.concatenate([part[:count] for part, count in zip(self.gather_array(rows), counts, strict=True)])

    def swap(self, parts: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Send part r to worker r. Returns the received parts, of these shapes, by rank. All must call this."""
        longest = int(self.gather_array(np.array([part.size for part in parts])).max())
        rows = np.zeros_like(parts[0], shape=(len(parts), longest))
        for row, part in zip(rows, parts, strict=True):
            row[: part.size] = part.reshape(-1)
        received = self.gather_array(rows)[:, self.rank]
        return [row[: prod(shape)].reshape(shape) for row, shape in zip(received, shapes, strict=True)]

    def broadcast(self, array: Any) -> None:
        """Overwrite the array by worker 0's."""

    def broadcast_object(self, thing: Any) -> Any:
        """The object of worker 0."""
        return thing

    def gather(self, thing: Any) -> list[Any] | None:
        """On worker 0 the objects of all workers, in the order of ranks; elsewhere None."""
        return [thing]

    def close(self) -> None:
        """Release the communicators. Collective."""

    def check_same(self, what: str, content: bytes) -> None:
        """Raises UsageError on each worker whose `content` differs from that of worker 0; all must call this."""
        if self.broadcast_object(sha256(content).digest()) != sha256(content).digest():
            raise UsageError(f"{what} of worker {self.rank} differ from those of worker 0: give all the same")


class SingleWorker(Workers):
    """One of several workers without the others. Its part of a split batch stays the same."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def part(self, samples: int) -> Share:
        return self._workers.part(samples)
