"""Flatten and Reshape: the same values in C order, in another shape."""

from __future__ import annotations

import math
from dataclasses import replace

from fcaffe.layers.c_order import copy_values, share, shares_memory
from fcaffe.net import Blob, Half, Layer, Traits, register
from fcaffe.net.placements import Placements, Shard, replicated, unchanged


class Reshaping(Layer):
    """Base: shares the memory of its bottom, or copies, since channels-last memory has no view of another shape."""

    traits = Traits(bottoms=1, tops=1, half=Half.SAME, reshapes_by_shape=True, in_place=False, reads="neither")
    ignores_propagate_down = True  # Caffe's top and bottom share their gradient

    def new_shape(self, bottom: Blob) -> tuple[int, ...]:
        raise NotImplementedError

    def rule(self, bottom: list[Blob]) -> Placements:
        shard = bottom[0].placement
        if not isinstance(shard, Shard) or shard.chosen_by:
            return (replicated if isinstance(shard, Shard) else unchanged)(self, bottom)
        old = self.context.whole_shape(bottom[0])
        new, ahead = self.new_shape(Blob(self.xp, old)), math.prod(old[: shard.axis])
        for axis, size in enumerate(new):  # the first one that has as many values ahead of it and cuts no sample
            if math.prod(new[:axis]) == ahead and size and size % shard.samples == 0:
                return [shard], [replace(shard, axis=axis)]
        return replicated(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.traits = replace(self.traits, aliases=shares_memory(self.context))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = self.new_shape(Blob(self.xp, self.context.whole_shape(bottom[0])))
        top[0].reshape(*self.context.own_shape(shape, top[0].placement))
        if self.traits.aliases:
            share(bottom[0], top[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.traits.aliases:
            copy_values(bottom[0].data, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if not self.traits.aliases:
            copy_values(top[0].diff, bottom[0].diff)


@register("Flatten")
class Flatten(Reshaping):
    """The axes from `axis` to `end_axis` become one."""

    def new_shape(self, bottom: Blob) -> tuple[int, ...]:
        p = self.param.flatten_param
        start, end = bottom.canonical_axis(p.axis), bottom.canonical_axis(p.end_axis, "end_axis")
        if start > end:
            raise self.error(f"axis {p.axis} lies behind end_axis {p.end_axis} in the bottom's shape {bottom.shape}")
        return (*bottom.shape[:start], math.prod(bottom.shape[start : end + 1]), *bottom.shape[end + 1 :])


@register("Reshape")
class Reshape(Reshaping):
    """The `num_axes` axes from `axis` on (-1: all of them) are replaced by those of `shape`.

    In `shape` 0 copies the bottom's dimension of the same axis, and one -1 stands for whatever is left. A negative axis
    counts from behind the last one.
    """

    def new_shape(self, bottom: Blob) -> tuple[int, ...]:
        p, old = self.param.reshape_param, bottom.shape
        start = p.axis if p.axis >= 0 else len(old) + p.axis + 1
        end = len(old) if p.num_axes == -1 else start + p.num_axes
        if p.num_axes < -1 or not 0 <= start <= end <= len(old):
            raise self.error(f"axis {p.axis} and num_axes {p.num_axes} do not fit the bottom's shape {old}")
        if list(p.shape.dim).count(-1) > 1 or any(dim < -1 for dim in p.shape.dim):
            raise self.error(f"shape may have one -1, and nothing below: {list(p.shape.dim)}")
        middle = []
        for axis, dim in enumerate(p.shape.dim, start):
            if dim == 0 and axis >= len(old):
                raise self.error(f"dim 0 copies axis {axis}, which the bottom's shape {old} does not have")
            middle.append(old[axis] if dim == 0 else dim)
        new = [*old[:start], *middle, *old[end:]]
        if -1 in middle:
            unknown = start + middle.index(-1)
            known = math.prod(new[:unknown] + new[unknown + 1 :])
            new[unknown] = bottom.count // known if known else 0
        if math.prod(new) != bottom.count:
            raise self.error(
                f"cannot give the bottom's shape {old} ({bottom.count} values) the shape {list(p.shape.dim)}"
                f" from axis {start} on"
            )
        return tuple(new)
