"""What the layers of a run share: the engine, the sources of randomness, and what they know of other workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom, counter
from fcaffe.share import Share, Turns
from fcaffe.timeline import Timeline


@dataclass
class Context:
    """Passed to every net of a run, never global. All is fixed when it is made, but for what has a method here.

    `noise` says where Dropout and other noise inside a net comes from: 'caffe' draws from `random`, in Caffe's order,
    one draw an element; 'counter' depends on (seed, layer, iteration, index of the sample in the global batch) only,
    so it does not change with the number of workers.

    The training net splits its batches among `workers`; `share` is this one's part. A test net is each worker's own
    and reads whole batches in `turns`. `sync_batch_norm`: BatchNorm takes mean and variance over the batch of all
    workers. Nets for `inference` never run backward. With `whole_passes` only whole passes run and only outer blobs are
    read, so layers are fused and memory is shared. With `recompute` some forward passes run again during backward, to
    save memory. With `on_demand` a script may read any blob, so whole forward passes materialise the blobs that it
    has read before. The others are computed when it reads them. With `shares_memory`, as in Caffe, a layer whose top
    has the values of its bottom, such as Flatten, is the memory of its bottom.

    `readers` are the nodes, by name, whose layers a twin of another net takes over from it (see `fcaffe.solvers.twin`).

    `wide_products` compute products over the samples of all workers, by layer (see `fcaffe.solvers.wide_products`).

    While nets are built, `as_worker_0` gives every worker what worker 0 passes to it. All workers must call it at the
    same point.
    """

    engine: Engine
    random: CaffeRandom
    noise: str = "caffe"
    seed: int = 0
    workers: Workers = field(default_factory=Workers)
    turns: Turns = field(default_factory=Turns)
    sync_batch_norm: bool = False
    inference: bool = False
    whole_passes: bool = False
    recompute: bool = False
    on_demand: bool = False
    shares_memory: bool = False
    timeline: Timeline = field(default_factory=Timeline)
    as_worker_0: Callable[[Any], Any] = lambda thing: thing
    readers: Mapping[str, Any] = field(default_factory=dict)
    wide_products: dict[str, Any] = field(default_factory=dict)
    share: Share | None = field(default=None, init=False)  # see `share_of`
    iteration: int = field(default=0, init=False)  # of the present pass: see `begin_pass`
    first_sample: int = field(default=0, init=False)
    explains: bool = field(default=False, init=False)  # layers raise errors for which they would wait for a device
    saves_for_backward: bool = field(default=True, init=False)  # whether the present forward pass does

    def __post_init__(self) -> None:
        self.saves_for_backward = not self.inference

    def share_of(self, batch_size: int) -> Share:
        """This worker's share of the batches of a layer that reads; such layers of a net must agree in the size."""
        share = self.workers.share(batch_size)
        if self.workers.size > 1 and self.share and self.share != share:
            raise NetError(f"reads batches of {share.total}, another layer of this net of {self.share.total}")
        self.share = share
        return share

    def count_over_workers(self, count: int, labels: Blob) -> float:
        """The sum over all workers of `count`, which is proportional to the number of samples in `labels`.

        The workers exchange their counts only if these do not follow from the size of the batch.
        """
        if labels.each_sample and self.share and self.workers.size > 1:
            return count * self.share.total / (labels.count // labels.each_sample)
        return self.workers.sum(float(count))

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """In its body, which the other workers do not run, sums are over this worker's own values."""
        workers, self.workers = self.workers, Workers()
        try:
            yield
        finally:
            self.workers = workers

    def begin_pass(self, iteration: int, first_sample: int) -> None:
        """Set what the noise of the next pass depends on: the iteration, and its first sample in the global batch."""
        self.iteration, self.first_sample = iteration, first_sample
        self.engine.set_counters(iteration, first_sample)

    def keep_mask(self, layer: str, shape: tuple[int, ...], ratio: float) -> np.ndarray:
        """True where Dropout keeps an element; probability 1 - ratio."""
        if self.noise == "caffe":
            keep = 1.0 - float(np.float32(ratio))
            return self.random.bernoulli(keep, int(np.prod(shape))).reshape(shape).astype(bool)
        return counter.keep_mask(self.seed, layer, self.iteration, self.first_sample, shape, ratio)

    def uniform(self, layer: str, shape: tuple[int, ...]) -> np.ndarray:
        """float32 in [0, 1) for stochastic pooling."""
        if self.noise == "caffe":
            return self.random.uniform(0.0, 1.0, int(np.prod(shape))).reshape(shape)
        return counter.uniform(self.seed, layer, self.iteration, self.first_sample, shape)

    def noise_key(self, layer: str) -> tuple[np.uint64, np.uint64]:
        """The key of the counter stream for this layer, for engines that draw from it themselves."""
        return counter.philox_key(self.seed, layer)

    def keep_limit(self, ratio: float) -> np.uint32:
        """The largest word of the counter stream for which Dropout keeps an element."""
        return counter.keep_limit(ratio)
