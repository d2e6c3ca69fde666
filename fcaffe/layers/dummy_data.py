"""DummyData: blobs filled with constants or random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.fillers import FILLERS, fill, holds_values
from fcaffe.proto import caffe_pb2 as pb

OLD_FIELDS = ("num", "channels", "height", "width")


@register("DummyData")
class DummyData(Layer):
    """Each top has its shape and its data_filler, or all share one; without a filler they are 0.

    Constant tops are filled once; the others in every forward pass, from the run's random stream.
    """

    traits = Traits(bottoms=0, tops=(1, None), reads_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        fillers = list(self.param.dummy_data_param.data_filler) or [pb.FillerParameter()]
        self._once_or_per_top("data_filler", len(fillers), len(top))
        self.fillers = fillers * len(top) if len(fillers) == 1 else fillers
        if any(map(_draws, self.fillers)):
            self.context.workers.run_shards_in_step()
        for blob, shape in zip(top, self._shapes(len(top)), strict=True):
            blob.reshape(*shape)
        self._fill(top, drawn=False)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        workers = self.context.workers
        self.is_split = workers.per_worker or workers.size == 1
        if self.is_split or workers.rank == 0:
            self._fill(top, drawn=True)
        for blob, filler in zip(top, self.fillers, strict=True):
            if _draws(filler) and not self.is_split:
                self.take_from_first(blob)

    def _fill(self, top: list[Blob], drawn: bool) -> None:
        """Fill those tops whose values are drawn, or the others (where an unknown filler is found out)."""
        if not holds_values(self.xp):
            return
        for blob, filler in zip(top, self.fillers, strict=True):
            if _draws(filler) == drawn:
                values = np.empty(blob.shape, np.float32)
                fill(values, filler, self.context.random)
                self.engine.upload(values, blob.data).wait()

    def _shapes(self, tops: int) -> list[tuple[int, ...]]:
        """One for each top, from `shape` or from the old four fields."""
        p = self.param.dummy_data_param
        if any(getattr(p, field) for field in OLD_FIELDS):
            if p.shape:
                raise self.error(f"give either shape, or {', '.join(OLD_FIELDS)} (the old form), not both")
            columns = []
            for field in OLD_FIELDS:
                values = list(getattr(p, field))
                self._once_or_per_top(field, len(values), tops)
                columns.append(values * tops if len(values) == 1 else values)
            return list(zip(*columns, strict=True))
        self._once_or_per_top("shape", len(p.shape), tops)
        shapes = [tuple(shape.dim) for shape in p.shape]
        return shapes * tops if len(shapes) == 1 else shapes

    def _once_or_per_top(self, field: str, given: int, tops: int) -> None:
        if given not in (1, tops):
            raise self.error(f"{field} must be given once or once per top: {given} for {tops} top(s)")


def _draws(filler: Any) -> bool:
    return filler.type in FILLERS and filler.type != "constant"
