"""Crop: a part of a blob as large as another blob."""

from __future__ import annotations

from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.placements import Placements, common


@register("Crop")
class Crop(Layer):
    """top = the part of bottom[0] that has the size of bottom[1] in every axis from `axis` on.

    It begins at `offset`: one number for all these axes (0 if none is given), or one for each. Of the second bottom
    only the shape counts, so its gradient is zero.
    """

    traits = Traits(bottoms=2, tops=1, constants=(1,), reads="neither")

    def rule(self, bottom: list[Blob]) -> Placements:
        axis = bottom[0].canonical_axis(self.param.crop_param.axis)
        needed = [common([blob], lambda shard: shard.axis < axis) for blob in bottom]  # the second one's shape counts
        return needed, needed

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, shape, wanted = self.param.crop_param, bottom[0].shape, bottom[1].shape
        axis = bottom[0].canonical_axis(p.axis)
        cropped = len(shape) - axis
        if len(wanted) != len(shape):
            raise self.error(f"needs bottoms with the same number of axes: {self.named_shapes(bottom)}")
        if len(p.offset) not in (0, 1, cropped):
            raise self.error(f"offset is given {len(p.offset)} times for the {cropped} axes from axis {axis} on")
        offsets = list(p.offset) * cropped if len(p.offset) == 1 else list(p.offset) or [0] * cropped
        for dim, start in enumerate(offsets, axis):
            if start + wanted[dim] > shape[dim]:
                raise self.error(
                    f"cannot take {wanted[dim]} from {start} on along axis {dim}: {self.named_shapes(bottom)}"
                )
        ends = (start + size for start, size in zip(offsets, wanted[axis:], strict=True))
        self.part = (slice(None),) * axis + tuple(map(slice, offsets, ends))
        top[0].reshape(*shape[:axis], *wanted[axis:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].data[...] = bottom[0].data[self.part]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            dx[...] = 0
            dx[self.part] = top[0].diff
        if propagate_down[1]:
            bottom[1].diff[...] = 0
