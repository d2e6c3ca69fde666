"""The common settings of the layers of a run: the engine, the sources of randomness, and the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.net.blob import Blob
from fcaffe.net.placements import REPLICATE, Placement, Replicate, Shard
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.rng.counter import Moment
from fcaffe.share import Share, Turns
from fcaffe.timeline import Timeline


@dataclass
class Context:
    """Passed to every net of a run, never global. Only its methods change it.

    `noise` says where Dropout and other noise inside a net comes from: 'caffe' draws from `random`, in Caffe's order,
    one draw an element; 'counter' depends on (seed, layer, `moment`, index of the row in the batch of all workers)
    only, so it does not change with the number of workers.

    The training net splits its batches among `workers`; `share` is this one's part. A test net is each worker's own
    and reads whole batches in `turns`. With `on_demand` whole forward passes of a script materialise the blobs that
    it has read before; the others are computed when it reads them. With `shares_memory`, as in Caffe, a layer whose
    top has the values of its bottom, such as Flatten, is the memory of its bottom.
    """

    engine: Engine
    random: CaffeRandom
    noise: str = "caffe"
    seed: int = 0
    workers: Workers = field(default_factory=Workers)
    turns: Turns = field(default_factory=Turns)
    sync_batch_norm: bool = False  # BatchNorm takes mean and variance over the batch of all workers
    inference: bool = False  # nets never run backward
    trains: bool = False  # a solver changes the weights after each pass
    whole_passes: bool = False  # only these run, and only outer blobs are read: layers are fused, memory is shared
    recompute: bool = False  # some forward passes run again during backward, to save memory
    on_demand: bool = False
    shares_memory: bool = False
    timeline: Timeline = field(default_factory=Timeline)
    as_worker_0: Callable[[Any], Any] = lambda thing: thing  # broadcasts worker 0's; all call it at the same point
    split_below: float = 0.0  # splits the weights of an InnerProduct: exchanged activations per gradient of a weight
    readers: Mapping[str, Any] = field(default_factory=dict)  # by key, the nodes that a twin takes over
    share: Share | None = field(default=None, init=False)  # of the largest batch that is split; see `share_of`
    unsplit: int = field(default=0, init=False)  # the size of a batch that is not
    moment: Moment = field(default=Moment(), init=False)  # the present forward pass: see `begin_pass`
    first_sample: int = field(default=0, init=False)  # of the share of this pass
    changes: int = field(default=0, init=False)  # see `may_change`
    explains: bool = field(default=False, init=False)  # layers raise errors for which they would wait for a device
    saves_for_backward: bool = field(default=True, init=False)  # whether the present forward pass does
    computes_again: bool = field(default=False, init=False)  # layers compute values of the present pass again
    _unnumbered: int = field(default=0, init=False)  # passes without a moment

    def __post_init__(self) -> None:
        self.saves_for_backward = not self.inference

    def share_of(self, batch_size: int) -> tuple[Share, Placement]:
        """This worker's share of the batches of a layer that reads, and the placement of the layer's tops. A batch that
        is smaller than the number of workers is not split."""
        if self.workers.size > batch_size and not self.workers.per_worker:
            self.unsplit = batch_size
            return Share(0, batch_size, batch_size), REPLICATE
        share = self.workers.share(batch_size)
        if self.share is None or share.total > self.share.total:
            self.share = share
        return share, Shard(0, batch_size)

    def whole_shape(self, blob: Blob) -> tuple[int, ...]:
        """The shape of a blob, also of a parameter, of which this worker may have a part."""
        if not isinstance(shard := blob.placement, Shard):
            return blob.shape
        shape = list(blob.shape)
        shape[shard.axis] = shape[shard.axis] * shard.samples // self.workers.part(shard.samples).count
        return tuple(shape)

    def own_part(self, shard: Shard, size: int) -> slice:
        """This worker's part of `size` entries along the axis of a Shard."""
        part, each = self.workers.part(shard.samples), size // shard.samples
        return slice(each * part.first, each * (part.first + part.count))

    def own_shape(self, whole: tuple[int, ...], placement: Placement) -> tuple[int, ...]:
        """The shape of this worker's part of an array of a whole shape."""
        if not isinstance(placement, Shard):
            return whole
        own = self.own_part(placement, whole[placement.axis])
        return (*whole[: placement.axis], own.stop - own.start, *whole[placement.axis + 1 :])

    def part_of(self, whole: Any, placement: Placement) -> Any:
        """This worker's part of a whole array, as a view."""
        if not isinstance(placement, Shard):
            return whole
        return whole[(slice(None),) * placement.axis + (self.own_part(placement, whole.shape[placement.axis]),)]

    def addend(self, blob: Blob) -> np.ndarray:
        """This worker's summand of a blob: the summands of all workers add up to the whole blob."""
        values, shard = self.engine.to_numpy(blob.data), blob.placement
        if self.workers.size == 1:
            return values
        if isinstance(shard, Shard) and not self.workers.per_worker:
            whole = np.zeros(self.whole_shape(blob), values.dtype)
            self.part_of(whole, shard)[...] = values
            return whole
        return values / values.dtype.type(self.workers.size) if isinstance(shard, Replicate) else values

    @contextlib.contextmanager
    def temporarily(self, **values: Any) -> Iterator[None]:
        """In its body these attributes have these values, such as `workers.single`, with sums over own values."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def may_change(self) -> bool:
        """Whether forward may draw numbers, change a state or write a file now. It may not in a second computation, for
        which a layer keeps what it has drawn. Counts the calls."""
        self.changes += 1
        return not self.computes_again

    def begin_pass(self, moment: Moment | None = None) -> None:
        """Set what the noise of the next pass depends on, and the first sample that this worker computes. Each net
        calls this for each of its forward passes. Without a moment it is one of a script's."""
        if moment is None:
            moment = Moment(number=self._unnumbered)
            self._unnumbered += 1
        self.moment = moment
        self.first_sample = self.share.first + self.workers.rows(self.share).start if self.share else 0
        self.engine.set_counters(self.first_sample, moment.number, moment.iteration, moment.net)
