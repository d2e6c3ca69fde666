"""Placements: how each blob is spread over the workers, and the rules by which layers pass it on.

    data of a blob                              its gradient
    Shard(axis)   contiguous parts, by rank     the same parts
    Replicate     every worker has all of it    the workers' gradients add up to it
    Partial       the workers' values add up    every worker has all of it
    Local         rows about a worker's own samples, which no other worker can read

A layer's rule says which placements it needs of its bottoms and which its tops then have. Where a bottom has another
one, the graph inserts a `Redistribute` (`fcaffe.net.build.redistribute`). The shards of a batch count as workers here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Placement:
    """Base. Its text is how the log names it."""

    chosen_by: Any = field(default=None, kw_only=True)  # the layer that chooses the rows, whose number changes

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Shard(Placement):
    """Each worker has a contiguous part along `axis`, by rank: the entries of its part of so many `samples`, or, with
    `chosen_by`, any number."""

    axis: int
    samples: int

    def __str__(self) -> str:
        return f"Shard({self.axis})"


@dataclass(frozen=True)
class Replicate(Placement):
    """Every worker has all of it."""


@dataclass(frozen=True)
class Partial(Placement):
    """The value is the sum over the workers."""


@dataclass(frozen=True)
class Local(Placement):
    """Rows that name samples by their position in the worker's own part of the batch."""


REPLICATE, PARTIAL, LOCAL = Replicate(), Partial(), Local()

# What a rule returns: the placement needed of each bottom, and those of the tops (the last one also of further tops).
Placements = tuple[Sequence[Placement], Sequence[Placement]]
Rule = Callable[[Any, list[Any]], Placements]  # a method of a layer, which takes its bottoms


def first_axis(shard: Shard) -> bool:
    return shard.axis == 0


def common(layer: Any, bottom: list[Any], accepts: Callable[[Shard], bool] = lambda shard: True) -> Placement:
    """The one placement in which a layer can take all of these bottoms: the first acceptable Shard of one of them.

    Else Shard(0) if workers have parts along another axis or of a sum: a transposition or a sum of parts moves fewer
    values than a gathering. Else Replicate.
    """
    placements = [blob.placement for blob in bottom]
    shards = [one for one in placements if isinstance(one, Shard) and accepts(one)]
    if chosen_by := next((one.chosen_by for one in placements if one.chosen_by), None):
        of_one_choice = shards and all(one == shards[0] for one in placements)
        return shards[0] if of_one_choice else Replicate(chosen_by=chosen_by)
    if shards:
        return shards[0]
    for blob in bottom:
        moves = isinstance(blob.placement, Partial) or (isinstance(blob.placement, Shard) and blob.placement.axis > 0)
        rows = split(layer, blob, 0) if moves and blob.shape else REPLICATE
        if isinstance(rows, Shard) and accepts(rows) and all(_numbers(rows, layer, other) for other in bottom):
            return rows
    return REPLICATE


def _numbers(shard: Shard, layer: Any, blob: Any) -> bool:
    """Whether the samples of a Shard of axis 0 can number the rows of a blob."""
    return bool(blob.shape) and layer.context.whole_shape(blob)[0] % shard.samples == 0


def of_all(placement: Placement, bottom: list[Any]) -> Placements:
    return [placement] * len(bottom), [placement]


# --- rules, as methods of a layer -------------------------------------------------------------------------------------


def replicated(layer: Any, bottom: list[Any], /) -> Placements:
    """The layer may combine any values, so every worker computes it on whole bottoms."""
    return of_all(common(layer, bottom, lambda shard: False), bottom)


def elementwise(layer: Any, bottom: list[Any], /) -> Placements:
    """Each value depends on the values of the same position."""
    return of_all(common(layer, bottom), bottom)


def by_sample(layer: Any, bottom: list[Any], /) -> Placements:
    """Sample i of each top, on axis 0, depends only on sample i of the bottoms."""
    return of_all(common(layer, bottom, first_axis), bottom)


def with_noise(accepts: Callable[[Shard], bool] = lambda shard: True) -> Rule:
    """A rule: the layer takes those Shards in which it knows the index of each row, by which it draws noise."""

    def rule(layer: Any, bottom: list[Any]) -> Placements:
        known = layer.context.workers.per_worker
        return of_all(common(layer, bottom, lambda shard: accepts(shard) and (known or not shard.chosen_by)), bottom)

    return rule


def unchanged(layer: Any, bottom: list[Any], /) -> Placements:
    """The layer takes every placement; all tops have that of the first bottom."""
    return [blob.placement for blob in bottom], [bottom[0].placement]


def between(axes: Callable[[Any, Any], Collection[int]]) -> Rule:
    """A rule: the layer combines values along these axes of its first bottom, and keeps the others as they are."""

    def rule(layer: Any, bottom: list[Any]) -> Placements:
        combined = axes(layer, bottom[0])
        return of_all(common(layer, bottom, lambda shard: shard.axis not in combined), bottom)

    return rule


def before(axis: Callable[[Any, Any], int]) -> Rule:
    """A rule: the axes before this one of the first bottom number independent rows, which are worth splitting."""

    def rule(layer: Any, bottom: list[Any]) -> Placements:
        first = axis(layer, bottom[0])
        placement = common(layer, bottom, lambda shard: shard.axis < first)
        return of_all(split(layer, bottom[0], 0) if first > 0 and placement == REPLICATE else placement, bottom)

    return rule


def differs(placement: Placement, needed: Placement) -> bool:
    """Whether a blob of this placement must be redistributed."""
    return placement != needed and not (isinstance(placement, Replicate) and isinstance(needed, Replicate))


def split(layer: Any, blob: Any, axis: int) -> Placement:
    """Shard along this axis of a blob, if it is long enough for all workers; else Replicate."""
    size, share = layer.context.whole_shape(blob)[axis], layer.context.share
    if size < layer.context.workers.size:
        return REPLICATE
    return Shard(axis, share.total if share and size % share.total == 0 else size)


def summed(layer: Any, bottom: list[Any], /) -> Placements:
    """A loss or another sum over the samples on axis 0; further tops have values for each sample."""
    placement = common(layer, bottom, first_axis)
    return [placement] * len(bottom), [total_of(placement), placement]


def total_of(placement: Placement) -> Placement:
    """The placement of the sum of values that have this placement."""
    return PARTIAL if isinstance(placement, Shard) else placement


def positions_summed(axis: Callable[[Any], int], of_classes: bool = False, alike: int = 2) -> Rule:
    """A rule: scores, with classes along `axis`, are compared with a label for each other position.

    Bottoms from `alike` on are whole. Tops: the sum; one like the scores, or sums of the classes; one like the labels.
    """

    def rule(layer: Any, bottom: list[Any]) -> Placements:
        among = bottom[0].canonical_axis(axis(layer))
        scores, *others = (layer.context.whole_shape(blob) for blob in bottom[:alike])

        def fits(shard: Shard) -> bool:
            end = shard.axis + 1
            return shard.axis < among and all(other[:end] == scores[:end] for other in others)

        placement = common(layer, bottom[:alike], fits)
        total = total_of(placement)
        needed = [placement] * min(len(bottom), alike) + [REPLICATE] * (len(bottom) - alike)
        return needed, [total, total if of_classes else placement, placement]

    return rule


def streams(layer: Any, bottom: list[Any], /) -> Placements:
    """A recurrent layer: axis 1, that of the streams, is worth splitting. A static input has them on axis 0."""
    placement = common(layer, bottom[:2], lambda shard: shard.axis == 1)
    if placement == REPLICATE and len(bottom[0].shape) > 1:
        placement = split(layer, bottom[0], 1)
    needed = [placement] * len(bottom)
    if isinstance(placement, Shard) and layer.has_static(bottom):
        needed[2] = replace(placement, axis=0)
    return needed, [placement]
