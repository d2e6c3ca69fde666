"""Class labels and indices of rows, which blobs hold as float32: cuts them to integers and checks their range.

Caffe does not check them, and reads other memory instead. On an asynchronous engine the host does not wait for them.
There a wrong one makes the layer's result NaN, and `Net.explain` raises the error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fcaffe.net import Array, Blob, Layer

ADVICE = "correct the data or the number of outputs"


class Integers(NamedTuple):
    """Integers from 0 to a limit, and 0 elsewhere; where they are ignored (None: nowhere); where out of range."""

    values: Array
    ignored: Array | None
    wrong: Array


class Range(NamedTuple):
    """The index of a bottom, the limit of its integers, and the words of an error."""

    bottom: int
    limit: int
    noun: str
    among: str
    owner: str
    advice: str


def check_label_count(layer: Layer, bottom: list[Blob], axis: int) -> None:
    """NetError unless there is one label (bottom[1]) per position of the scores (bottom[0])."""
    positions = _positions(bottom[0], axis)
    if bottom[1].count != math.prod(positions):
        raise layer.error(
            f"needs one label per position, shape {positions} without the axis of the classes ({axis}): "
            f"{layer.named_shapes(bottom)}"
        )


def check_sample_labels(layer: Layer, bottom: list[Blob]) -> None:
    """NetError unless there is one label (bottom[1]) per sample of the scores (bottom[0])."""
    if bottom[0].shape[:1] != (bottom[1].count,):
        raise layer.error(f"needs one label per sample: {layer.named_shapes(bottom)}")


def total_of_labels(layer: Layer, count: int | Array, labels: Blob) -> float | Array:
    """This number of labels over all workers, at least 1. If it is an array without axes, so is the result, unless
    there are several workers: one worker does not wait for a device."""
    if isinstance(count, int):
        return max(1.0, layer.over_workers(count, labels))
    if layer.workers.size > 1:
        return max(1.0, layer.workers.sum(float(count)))
    return layer.xp.maximum(count, layer.xp.float32(1))


def waits(layer: Layer) -> bool:
    """Whether the layer may wait for values, and so raise an error about them."""
    return not layer.engine.asynchronous or layer.traits.needs_host or layer.context.explains


def read_labels(layer: Layer, bottom: list[Blob], axis: int, ignored: int | None) -> Integers:
    """The labels in the shape of the scores without the axis of the classes.

    Raises NetError if one is no class and the layer `waits`.
    """
    advice = f"{ADVICE}, or set ignore_label"
    limits = Range(1, bottom[0].shape[axis], "label", "classes", layer.bottom_name(0), advice)
    return _read(layer, bottom, limits, _positions(bottom[0], axis), ignored)


def read_classes(layer: Layer, bottom: list[Blob], axis: int, ignored: int | None) -> Integers:
    """The same in the shape of the scores with one class."""
    labels = read_labels(layer, bottom, axis, ignored)
    return Integers(*(part if part is None else layer.xp.expand_dims(part, axis) for part in labels))  # type: ignore[arg-type]


def read_sample_labels(layer: Layer, bottom: list[Blob]) -> Integers:
    """The same with one label per sample, (N, 1), of which each value of a sample's scores is a class."""
    classes = math.prod(bottom[0].shape[1:])
    return _read(layer, bottom, Range(1, classes, "label", "classes", layer.bottom_name(0), ADVICE), (-1, 1))


def read_indices(layer: Layer, bottom: list[Blob], which: int, rows: int, owner: str) -> Integers:
    """The same for bottom[which], in its own shape, as indices of the `rows` of the owner."""
    limits = Range(which, rows, "index", "rows", owner, "correct the data")
    return _read(layer, bottom, limits, bottom[which].shape)


def _read(
    layer: Layer, bottom: list[Blob], limits: Range, shape: tuple[int, ...], ignored: int | None = None
) -> Integers:
    values = bottom[limits.bottom].data.astype(layer.xp.int64)
    wrong = (values < 0) | (values >= limits.limit)
    skipped = None
    if ignored is not None:
        skipped = (values == ignored).reshape(shape)
        wrong &= values != ignored
    if waits(layer) and wrong.any():
        position = int(wrong.reshape(-1).argmax())
        value = float(bottom[limits.bottom].data.reshape(-1)[position])
        raise layer.error(
            f"{limits.noun} {value:g} at position {position} of {layer.bottom_name(limits.bottom)} "
            f"{bottom[limits.bottom].shape} is none of the {limits.among} 0 to {limits.limit - 1} of {limits.owner}; "
            f"{limits.advice}"
        )
    wrong = wrong.reshape(shape)
    outside = wrong if skipped is None else wrong | skipped
    return Integers(layer.xp.where(outside, 0, values.reshape(shape)), skipped, wrong)


def _positions(scores: Blob, axis: int) -> tuple[int, ...]:
    return (*scores.shape[:axis], *scores.shape[axis + 1 :])
