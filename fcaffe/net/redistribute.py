"""Redistribute: a node that the graph inserts where a layer needs another placement of a bottom than it has.

    Shard -> Replicate   gathers the parts          backward: sums the gradients, takes the worker's part
    Partial -> Replicate sums                       backward: sums the gradients
    Replicate -> Shard   takes the worker's part    backward: zeros elsewhere; nothing is exchanged

Every other change is one of the first two and then the third.
"""

from __future__ import annotations

import math

import numpy as np

from fcaffe import log
from fcaffe.net.blob import Array, Blob
from fcaffe.net.context import Context
from fcaffe.net.layer import Layer, Traits
from fcaffe.net.placements import LOCAL, Partial, Placement, Replicate, Shard
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.share import split_batch


class Redistribute(Layer):
    """top = the bottom in another placement, for the layer `reader`."""

    # The top keeps memory of its own, since other workers would have to compute it again too.
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
        self._set_shape(whole, top[0])
        does = {Shard: "is gathered", Partial: "is summed", Replicate: "is cut"}[type(self.source)]
        log.info(
            f'{self.bottom_name(0)} {does} for layer "{self.reader.name}" ({self.reader.type}), from {self.source} to '
            f"{self.target}: each worker sends {self.bytes_sent(bottom):,} bytes a pass"
        )

    def bytes_sent(self, bottom: list[Blob]) -> int:
        """What each worker sends to the others in one pass, forward and backward."""
        size, total = self.context.workers.size, 4 * math.prod(self.context.whole_shape(bottom[0]))
        part = total * (size - 1) // size
        if isinstance(self.source, Replicate):
            return 0
        forward = part if isinstance(self.source, Shard) else total * (size - 1)
        return forward + (part if isinstance(self.target, Shard) else total * (size - 1))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not (isinstance(self.source, Shard) and self.source.chosen_by):  # else forward sets the shape
            self._set_shape(self.context.whole_shape(bottom[0]), top[0])

    def _set_shape(self, whole: tuple[int, ...], top: Blob) -> None:
        shape = list(whole)
        if isinstance(self.target, Shard):
            own = self._own(self.target, whole)
            shape[self.target.axis] = own.stop - own.start
        top.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        whole = self._whole(bottom[0].data, self.source, Partial)
        self._set_shape(whole.shape, top[0])
        top[0].data[...] = self._cut(whole, self.target)

    def forward_again(self, bottom: list[Blob], top: list[Blob]) -> None:
        """The top has its values still."""

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, dy = bottom[0].diff, top[0].diff
        if isinstance(self.source, Replicate):
            dx[...] = 0
            self._cut(dx, self.target)[...] = dy
        else:
            dx[...] = self._cut(self._whole(dy, self.target, Replicate), self.source)

    def _whole(self, values: Array, placement: Placement, adds_up: type[Placement]) -> Array:
        """All workers' values; those of the placement `adds_up` are added up."""
        workers = self.context.workers
        if isinstance(placement, adds_up):
            return workers.sum_array(values)
        if not isinstance(placement, Shard):
            return values
        values = self.xp.moveaxis(values, placement.axis, 0)
        self.rows = self._rows(placement, len(values))
        return self.xp.moveaxis(workers.gather_rows(values, self.rows), 0, placement.axis)

    def _rows(self, shard: Shard, own: int) -> list[int]:
        workers = self.context.workers
        if shard.chosen_by:
            return [int(count) for count in workers.gather_array(np.array([own])).reshape(-1)]
        each = own // workers.part(shard.samples).count
        return [each * split_batch(shard.samples, rank, workers.size).count for rank in range(workers.size)]

    def _cut(self, whole: Array, placement: Placement) -> Array:
        """This worker's part, a view."""
        if not isinstance(placement, Shard):
            return whole
        return whole[(slice(None),) * placement.axis + (self._own(placement, whole.shape),)]

    def _own(self, shard: Shard, whole: tuple[int, ...]) -> slice:
        if shard.chosen_by:
            start = sum(self.rows[: self.context.workers.rank])
            return slice(start, start + self.rows[self.context.workers.rank])
        return self.context.own_part(shard, whole[shard.axis])


def differs(given: Placement, needed: Placement) -> bool:
    """Whether a bottom of the placement `given` must be redistributed."""
    return given != needed and not (isinstance(given, Replicate) and isinstance(needed, Replicate))
