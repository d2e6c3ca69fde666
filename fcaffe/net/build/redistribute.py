"""Redistribute: a node that the graph inserts where a layer needs another placement of a bottom than it has.

    Shard -> Replicate     gathers the parts                 backward: Partial -> Shard
    Shard -> other Shard   each worker sends all a part      backward: the same
    Partial -> Shard       sums parts (reduce-scatter)       backward: Shard -> Replicate
    Partial -> Replicate   sums                              backward: the same
    Replicate -> Shard     takes the worker's part           backward: Shard -> Partial, with zeros elsewhere

The gradient of a replicated blob is a sum over the workers; that of a sum is replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from fcaffe import log
from fcaffe.net.blob import Array, Blob
from fcaffe.net.context import Context
from fcaffe.net.layer import Layer, Traits
from fcaffe.net.placements import LOCAL, PARTIAL, REPLICATE, Partial, Placement, Replicate, Shard
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.share import split_batch
from fcaffe.tree_order import sum_in_tree_order


class Redistribute(Layer):
    """top = the bottom in another placement, for the layer `reader`."""

    traits = Traits(bottoms=1, tops=1, in_place=False, needs_host=True, shapes_by_values=True, reads="neither")

    def __init__(self, name: str, context: Context, reader: Layer, source: Placement, target: Placement) -> None:
        top = f"{reader.name}_{name}_{str(target).lower()}"
        super().__init__(pb.LayerParameter(name=top, type="Redistribute", bottom=[name], top=[top]), context)
        self.reader, self.source, self.target = reader, source, target
        self.rows: list[int] = []  # of each worker, along the axis of a Shard that is gathered

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        workers, whole = self.context.workers, self.context.whole_shape(bottom[0])
        if LOCAL in (self.source, self.target):
            raise self.reader.error(
                f"cannot read {self.bottom_name(0)}, whose rows are about the samples of one worker each, "
                f"{workers.splitting}"
            )
        if isinstance(self.target, Shard) and whole[self.target.axis] % self.target.samples:
            raise self.reader.error(
                f"axis {self.target.axis} of {self.bottom_name(0)} {whole} does not number the {self.target.samples} "
                f"samples of its other bottoms, {workers.splitting}"
            )
        if not isinstance(self.source, Replicate):
            workers.run_shards_in_step()
        top[0].reshape(*self.context.own_shape(whole, self.target))
        readers = f'layer "{self.reader.name}" ({self.reader.type})'
        log.info(f"{self.bottom_name(0)} goes from {self.source} to {self.target} for {readers}")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not (isinstance(self.source, Shard) and self.source.chosen_by):  # else forward sets the shape
            top[0].reshape(*self.context.own_shape(self.context.whole_shape(bottom[0]), self.target))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        source, x = self.source, bottom[0].data
        if isinstance(source, Shard) and source.chosen_by:
            own = np.array([x.shape[source.axis]])
            self.rows = [int(count) for count in self.context.workers.gather_array(own).reshape(-1)]
            top[0].reshape(*self._whole_shape(x, source))
        top[0].data[...] = self._moved(x, source, self.target)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        bottom[0].diff[...] = self._moved(top[0].diff, adjoint(self.target), adjoint(self.source))

    def _moved(self, values: Array, source: Placement, target: Placement) -> Array:
        """The values in another placement."""
        workers, rank = self.context.workers, self.context.workers.rank
        if isinstance(source, Replicate):
            return values[self._parts(target, values.shape)[rank]]
        if isinstance(source, Partial):
            if not isinstance(target, Shard):
                return workers.sum_array(values)
            parts = [values[part] for part in self._parts(target, values.shape)]
            return sum_in_tree_order(workers.swap(parts, [parts[rank].shape] * len(parts)))
        assert isinstance(source, Shard)
        whole = self._whole_shape(values, source)
        if isinstance(target, Partial):
            zeros = self.xp.zeros(whole, values.dtype)
            zeros[self._parts(source, whole)[rank]] = values
            return zeros
        present = self._parts(source, whole)
        if not isinstance(target, Shard):
            counts = [part[source.axis].stop - part[source.axis].start for part in present]
            rows = workers.gather_rows(self.xp.moveaxis(values, source.axis, 0), counts)
            return self.xp.moveaxis(rows, 0, source.axis)
        wanted = self._parts(target, whole)
        starts = [own.start for own in present[rank]]
        parts = [values[_shared(present[rank], part, starts)] for part in wanted]
        shapes = [tuple(one.stop - one.start for one in _shared(part, wanted[rank])) for part in present]
        return self.xp.concatenate(workers.swap(parts, shapes), axis=source.axis)

    def _whole_shape(self, values: Array, shard: Shard) -> tuple[int, ...]:
        own, samples = values.shape[shard.axis], shard.samples
        length = sum(self.rows) if shard.chosen_by else own * samples // self.context.workers.part(samples).count
        return (*values.shape[: shard.axis], length, *values.shape[shard.axis + 1 :])

    def _parts(self, placement: Placement, whole: tuple[int, ...]) -> list[tuple[slice, ...]]:
        """For each worker the index of its part of an array of this shape."""
        size, index = self.context.workers.size, tuple(slice(0, n) for n in whole)
        if not isinstance(placement, Shard):
            return [index] * size
        counts = self.rows
        if not placement.chosen_by:
            each = whole[placement.axis] // placement.samples
            counts = [each * split_batch(placement.samples, rank, size).count for rank in range(size)]
        before, behind = index[: placement.axis], index[placement.axis + 1 :]
        ends = zip(counts, accumulate(counts), strict=True)
        return [(*before, slice(stop - count, stop), *behind) for count, stop in ends]


def _shared(one: Sequence[slice], other: Sequence[slice], starts: Sequence[int] | None = None) -> tuple[slice, ...]:
    """The intersection of two parts, as an index of the whole array, or of one that begins at `starts`."""
    shared = []
    for a, b, origin in zip(one, other, starts or [0] * len(one), strict=True):
        start = max(a.start, b.start)
        shared.append(slice(start - origin, max(start, min(a.stop, b.stop)) - origin))
    return tuple(shared)


def adjoint(placement: Placement) -> Placement:
    """The placement of the gradient of a blob that has this one."""
    return {Replicate: PARTIAL, Partial: REPLICATE}.get(type(placement), placement)
