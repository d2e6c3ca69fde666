"""Noise: the random numbers of a layer for its rows of the batch, by the stream of its run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.net.blob import Blob
from fcaffe.net.placements import Replicate, Shard
from fcaffe.rng import counter

APART = 1 << 32  # rows between those of two workers whose numbers of rows are unknown to each other


class Noise:
    """Draws numbers for each value of a blob of this shape and placement.

    The rows, along axis 0, are numbered in the whole batch over all workers. If workers split another axis, each of
    them draws whole rows and takes its part. A layer must not draw in a second computation: see `Context.may_change`.
    `by_host`: an engine cannot draw masks itself, by `philox_key`, `first_row` and `Context.moment`.
    """

    def __init__(self, layer: Any, blob: Blob) -> None:
        self.context, self.key, self._blob = layer.context, layer.key, blob
        shard, workers = blob.placement, self.context.workers
        self._whole_rows = isinstance(shard, Shard) and shard.axis > 0 and workers.size > 1 and not workers.per_worker
        share = self.context.share
        moves = workers.in_shards and isinstance(shard, Shard) and (share is None or shard.samples != share.total)
        self.by_host = self.context.noise == "caffe" or self._whole_rows or moves

    def keep_mask(self, shape: tuple[int, ...], ratio: float) -> np.ndarray:
        """True where Dropout keeps a value; probability 1 - ratio."""
        context, (whole, first) = self.context, self._rows(shape)
        if context.noise == "caffe":
            keep = 1.0 - float(np.float32(ratio))
            drawn = context.random.bernoulli(keep, math.prod(whole)).reshape(whole).astype(bool)
        else:
            for_each = context.engine.for_each
            drawn = counter.keep_mask(context.seed, self.key, context.moment, first, whole, ratio, for_each)
        return self._part(drawn)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """float32 in [0, 1)."""
        context, (whole, first) = self.context, self._rows(shape)
        if context.noise == "caffe":
            return self._part(context.random.uniform(0.0, 1.0, math.prod(whole)).reshape(whole))
        return self._part(counter.uniform(context.seed, self.key, context.moment, first, whole))

    @property
    def philox_key(self) -> tuple[np.uint64, np.uint64]:
        return counter.philox_key(self.context.seed, self.key)

    def keep_limit(self, ratio: float) -> np.uint32:
        """The largest word of the stream for which Dropout keeps a value."""
        return counter.keep_limit(ratio)

    def first_row(self, rows: int) -> tuple[int, int]:
        """The index of the first of so many rows is the first number, plus the second one times
        `Context.first_sample`, which recorded work reads on the device."""
        context, shard = self.context, self._blob.placement
        workers = context.workers
        if workers.size == 1:
            return 0, 0
        if workers.per_worker:
            known = isinstance(shard, Shard) and not shard.chosen_by
            return workers.rank * (rows if known else APART), 0
        if isinstance(shard, Replicate) or self._whole_rows:
            return 0, 0
        assert isinstance(shard, Shard)
        part = workers.part(shard.samples)
        each = rows // max(1, part.count)
        return (part.first * each, 0) if self.by_host else (0, each)

    def _rows(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The shape of whole rows, and the index of the first row."""
        first, each = self.first_row(shape[0] if shape else 1)
        whole = self.context.whole_shape(self._blob) if self._whole_rows else shape
        return whole, first + each * self.context.first_sample

    def _part(self, values: np.ndarray) -> np.ndarray:
        return self.context.part_of(values, self._blob.placement) if self._whole_rows else values
