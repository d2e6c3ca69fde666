"""Class labels read from a blob, checked: Caffe reads past the end of its scores where a label is no class."""

from __future__ import annotations

import math

from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import Layer


def check_label_count(layer: Layer, bottom: list[Blob], axis: int) -> None:
    """NetError unless there is one label (bottom[1]) per position of the scores (bottom[0])."""
    positions = _positions(bottom[0], axis)
    if bottom[1].count != math.prod(positions):
        raise layer.error(
            f"needs one label per position, shape {positions} without the axis of the classes ({axis}): "
            f"{layer.named_shapes(bottom)}"
        )


def read_labels(layer: Layer, bottom: list[Blob], axis: int, ignored: int | None) -> tuple[Array, Array | None]:
    """The labels, cut to integers, in the shape of the scores without the axis of the classes.

    Also where the label is `ignored` (None if no label is); there it reads as 0. NetError if one is no class.
    """
    xp, classes = layer.xp, bottom[0].shape[axis]
    values = bottom[1].data.reshape(_positions(bottom[0], axis))
    labels = values.astype(xp.int64)
    wrong = (labels < 0) | (labels >= classes)
    skipped = None
    if ignored is not None:
        skipped = labels == ignored
        labels = xp.where(skipped, 0, labels)
        wrong &= ~skipped
    if wrong.any():
        place = int(wrong.reshape(-1).argmax())
        raise layer.error(
            f"label {float(values.reshape(-1)[place]):g} at position {place} of {layer.bottom_name(1)} "
            f"{bottom[1].shape} is none of the classes 0 to {classes - 1} of {layer.bottom_name(0)}; "
            "correct the data or the number of outputs, or set ignore_label"
        )
    return labels, skipped


def _positions(scores: Blob, axis: int) -> tuple[int, ...]:
    return (*scores.shape[:axis], *scores.shape[axis + 1 :])
