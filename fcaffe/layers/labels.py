"""Class labels and other indices read from a blob, checked: where one is too large, Caffe reads what lies behind.

In the blob they are float32; they are cut to integers.
"""

from __future__ import annotations

import math

from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import Layer

ADVICE = "correct the data or the number of outputs"


def check_label_count(layer: Layer, bottom: list[Blob], axis: int) -> None:
    """NetError unless there is one label (bottom[1]) per position of the scores (bottom[0])."""
    positions = _positions(bottom[0], axis)
    if bottom[1].count != math.prod(positions):
        raise layer.error(
            f"needs one label per position, shape {positions} without the axis of the classes ({axis}): "
            f"{layer.named_shapes(bottom)}"
        )


def read_labels(layer: Layer, bottom: list[Blob], axis: int, ignored: int | None) -> tuple[Array, Array | None]:
    """The labels in the shape of the scores without the axis of the classes.

    Also where the label is `ignored` (None if no label is); there it reads as 0. NetError if one is no class.
    """
    positions, classes = _positions(bottom[0], axis), bottom[0].shape[axis]
    advice = ADVICE + ", or set ignore_label"
    labels, skipped = _read(layer, bottom, 1, classes, ignored, ("label", "classes", layer.bottom_name(0), advice))
    return labels.reshape(positions), None if skipped is None else skipped.reshape(positions)


def check_sample_labels(layer: Layer, bottom: list[Blob]) -> None:
    """NetError unless there is one label (bottom[1]) per sample of the scores (bottom[0])."""
    if bottom[0].shape[:1] != (bottom[1].count,):
        raise layer.error(f"needs one label per sample: {layer.named_shapes(bottom)}")


def read_sample_labels(layer: Layer, bottom: list[Blob]) -> Array:
    """(N, 1): the label of each sample, where every value of a sample's scores is a class. NetError if one is none."""
    classes = math.prod(bottom[0].shape[1:])
    labels, _ = _read(layer, bottom, 1, classes, None, ("label", "classes", layer.bottom_name(0), ADVICE))
    return labels.reshape(-1, 1)


def read_indices(layer: Layer, bottom: list[Blob], which: int, rows: int, owner: str) -> Array:
    """bottom[which] as indices, in its shape. NetError if one is not among the `rows` of the owner."""
    return _read(layer, bottom, which, rows, None, ("index", "rows", owner, "correct the data"))[0]


def _read(
    layer: Layer, bottom: list[Blob], which: int, limit: int, ignored: int | None, words: tuple[str, str, str, str]
) -> tuple[Array, Array | None]:
    """bottom[which] as integers from 0 to limit - 1, and where they are ignored. `words` are for the error."""
    values = bottom[which].data
    indices = values.astype(layer.xp.int64)
    wrong = (indices < 0) | (indices >= limit)
    skipped = None
    if ignored is not None:
        skipped = indices == ignored
        indices = layer.xp.where(skipped, 0, indices)
        wrong &= ~skipped
    if wrong.any():
        noun, among, owner, advice = words
        place = int(wrong.reshape(-1).argmax())
        raise layer.error(
            f"{noun} {float(values.reshape(-1)[place]):g} at position {place} of {layer.bottom_name(which)} "
            f"{bottom[which].shape} is none of the {among} 0 to {limit - 1} of {owner}; {advice}"
        )
    return indices, skipped


def _positions(scores: Blob, axis: int) -> tuple[int, ...]:
    return (*scores.shape[:axis], *scores.shape[axis + 1 :])
