"""Blobs joined or cut along axes: Concat and its reverse, Slice; Tile, one blob several times; Crop, a part of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fcaffe.layers.c_order import share, shares_memory
from fcaffe.net import Array, Blob, Half, Layer, Traits, placements, register
from fcaffe.net.placements import Placements, common


class AlongAxis(Layer):
    """Base: knows the axis, which is also accepted in its old spelling."""

    axis: int
    traits = Traits(half=Half.SAME, reads="neither")

    def find_axis(self, bottom: Blob, p: Any, old_field: str) -> int:
        if not p.HasField(old_field):
            return bottom.canonical_axis(p.axis)
        if p.HasField("axis"):
            raise self.error(f"give either axis or {old_field} (its old name), not both")
        return bottom.canonical_axis(getattr(p, old_field), old_field)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.ignores_propagate_down and top[0] is not bottom[0] and shares_memory(self.context):
            self.traits = replace(self.traits, aliases=True)

    @property
    def ignores_propagate_down(self) -> bool:
        """The only top has the values of the only bottom. In Caffe they share their gradient too."""
        return len(self.param.bottom) == len(self.param.top) == 1

    def parts(self, whole: Array, blobs: list[Blob]) -> Iterator[Array]:
        """Views of the whole for these blobs, which lie in it side by side."""
        ends = itertools.accumulate(blob.shape[self.axis] for blob in blobs)
        for blob, end in zip(blobs, ends, strict=True):
            yield whole[(slice(None),) * self.axis + (slice(end - blob.shape[self.axis], end),)]


@register("Concat")
class Concat(AlongAxis):
    """top = the bottoms one after the other along `axis`; their other axes agree."""

    rule = placements.between(lambda layer, x: [layer.find_axis(x, layer.param.concat_param, "concat_dim")])
    traits = replace(AlongAxis.traits, bottoms=(1, None), tops=1, reshapes_by_shape=True)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.axis = axis = self.find_axis(bottom[0], self.param.concat_param, "concat_dim")
        first = bottom[0].shape
        for blob in bottom:
            if (blob.shape[:axis], blob.shape[axis + 1 :]) != (first[:axis], first[axis + 1 :]):
                raise self.error(f"bottoms may differ in axis {axis} only: {self.named_shapes(bottom)}")
        top[0].reshape(*first[:axis], sum(blob.shape[axis] for blob in bottom), *first[axis + 1 :])
        if self.traits.aliases:
            share(bottom[0], top[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.traits.aliases:
            for blob, part in zip(bottom, self.parts(top[0].data, bottom), strict=True):
                self.engine.copy(blob.data, part)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self.traits.aliases:
            return
        for blob, part, down in zip(bottom, self.parts(top[0].diff, bottom), propagate_down, strict=True):
            if down:
                self.engine.copy(part, blob.diff)


@register("Slice")
class Slice(AlongAxis):
    """tops = the bottom cut along `axis` at the slice_points, or into equal parts."""

    rule = placements.between(lambda layer, x: [layer.find_axis(x, layer.param.slice_param, "slice_dim")])
    traits = replace(AlongAxis.traits, bottoms=1, tops=(1, None))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.slice_param
        self.axis = axis = self.find_axis(bottom[0], p, "slice_dim")
        shape = bottom[0].shape
        length = shape[axis]
        if p.slice_point:
            if len(p.slice_point) != len(top) - 1:
                raise self.error(f"{len(top)} tops need {len(top) - 1} slice_point(s), not {len(p.slice_point)}")
            points = [0, *p.slice_point, length]
        else:
            if length % len(top):
                raise self.error(f"cannot cut axis {axis} of the bottom's shape {shape} into {len(top)} equal parts")
            points = [part * (length // len(top)) for part in range(len(top) + 1)]
        sizes = [end - start for start, end in itertools.pairwise(points)]
        # A point at the very end is allowed: the last top gets nothing.
        if p.slice_point and (len(top) > length or min(sizes[:-1]) < 1 or sizes[-1] < 0):
            raise self.error(f"slice_point must rise within axis {axis} of the bottom's shape {shape}: {points[1:-1]}")
        for blob, size in zip(top, sizes, strict=True):
            blob.reshape(*shape[:axis], size, *shape[axis + 1 :])
        if self.traits.aliases:
            share(bottom[0], top[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.traits.aliases:
            for blob, part in zip(top, self.parts(bottom[0].data, top), strict=True):
                self.engine.copy(part, blob.data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not self.traits.aliases:
            for blob, part in zip(top, self.parts(bottom[0].diff, top), strict=True):
                self.engine.copy(blob.diff, part)


@register("Tile")
class Tile(Layer):
    """top = the bottom `tiles` times, one after the other along `axis`."""

    traits = Traits(bottoms=1, tops=1, reads="neither")
    rule = placements.between(lambda layer, x: [x.canonical_axis(layer.param.tile_param.axis)])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, shape = self.param.tile_param, bottom[0].shape
        if p.tiles < 1:
            raise self.error("tile_param.tiles must be positive")
        self.axis = bottom[0].canonical_axis(p.axis)
        top[0].reshape(*shape[: self.axis], shape[self.axis] * p.tiles, *shape[self.axis + 1 :])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._tiles(top[0].data, bottom[0])[...] = self.xp.expand_dims(bottom[0].data, self.axis)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.xp.sum(self._tiles(top[0].diff, bottom[0]), axis=self.axis, out=bottom[0].diff)

    def _tiles(self, array: Array, bottom: Blob) -> Array:
        """A view of an array like the top, with an axis that numbers the tiles."""
        return array.reshape(*bottom.shape[: self.axis], self.param.tile_param.tiles, *bottom.shape[self.axis :])


@register("Crop")
class Crop(Layer):
    """top = the part of bottom[0] that has the size of bottom[1] in every axis from `axis` on.

    It begins at `offset`: one number for all these axes (0 if none is given), or one for each. Of the second bottom
    only the shape counts, so its gradient is zero.
    """

    traits = Traits(bottoms=2, tops=1, constants=(1,), reads="neither")

    def rule(self, bottom: list[Blob]) -> Placements:
        axis = bottom[0].canonical_axis(self.param.crop_param.axis)
        needed = [common(self, [blob], lambda shard: shard.axis < axis) for blob in bottom]  # one counts by its shape
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
        dx = bottom[0].diff
        dx[...] = 0
        dx[self.part] = top[0].diff
