"""Blobs that no layer computes: Input, DummyData and Parameter."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.fillers import FILLERS, fill, holds_values
from fcaffe.proto import caffe_pb2 as pb


@register("Input")
class Input(Layer):
    """Tops of the given shapes: one for each, one for all, or none (the code that feeds the net reshapes them)."""

    traits = Traits(bottoms=0, tops=(1, None))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.refuse_split("has values from outside of the net")
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        if len(shapes) not in (0, 1, len(top)):
            raise self.error(f"shape must be given once, once per top or not at all: {len(shapes)} for {len(top)} tops")
        if len(shapes) == 1:
            shapes *= len(top)
        for blob, shape in zip(top, shapes, strict=False):
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass


Value = TypeVar("Value")

OLD_FIELDS = ("num", "channels", "height", "width")


@register("DummyData")
class DummyData(Layer):
    """Each top has its shape and its data_filler, or all share one; without a filler they are 0.

    Constant tops are filled once; the others in every forward pass, from the run's random stream.
    """

    traits = Traits(bottoms=0, tops=(1, None), reads_host=True)

    @classmethod
    def follows_batches(cls, param: Any) -> bool:
        return any(map(_draws, param.dummy_data_param.data_filler))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        fillers = list(self.param.dummy_data_param.data_filler) or [pb.FillerParameter()]
        self.fillers = self._for_each_top("data_filler", fillers, len(top))
        if any(map(_draws, self.fillers)):
            self.context.workers.run_shards_in_step()
        for blob, shape in zip(top, self._shapes(len(top)), strict=True):
            blob.reshape(*shape)
        self._fill(top, drawn=False)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.is_split or self.context.workers.rank == 0:
            self._fill(top, drawn=True)
        for blob, filler in zip(top, self.fillers, strict=True):
            if _draws(filler) and not self.is_split:
                self.copy_from_first(blob)

    def _fill(self, top: list[Blob], drawn: bool) -> None:
        """Fill those tops whose values are drawn, or the others."""
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
            columns = [self._for_each_top(field, list(getattr(p, field)), tops) for field in OLD_FIELDS]
            return list(zip(*columns, strict=True))
        return self._for_each_top("shape", [tuple(shape.dim) for shape in p.shape], tops)

    def _for_each_top(self, field: str, values: list[Value], tops: int) -> list[Value]:
        """One value for each top, from a field that is given once or once per top."""
        if len(values) not in (1, tops):
            raise self.error(f"{field} must be given once or once per top: {len(values)} for {tops} top(s)")
        return values * tops if len(values) == 1 else values


def _draws(filler: Any) -> bool:
    return filler.type in FILLERS and filler.type != "constant"


@register("Parameter")
class Parameter(Layer):
    """top = a parameter of this `shape`, the very same memory; it starts at 0."""

    traits = Traits(bottoms=0, tops=1)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.add_blob().reshape(*self.param.parameter_param.shape.dim)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*self.blobs[0].shape)
        top[0].share_data(self.blobs[0])  # each time: the parameter moves when it is shared with another layer

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        # In Caffe the gradient is shared too, so that with iter_size the last pass overwrites those before it.
        if self.param_propagate_down[0]:
            self.blobs[0].diff[...] += top[0].diff
