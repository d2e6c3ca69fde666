"""Class labels and other indices read from a blob, checked: where one is too large, Caffe reads what lies behind.

In the blob they are float32; they are cut to integers.
"""

from __future__ import annotations

import math

from fcaffe.errors import NetError
from fcaffe.net import Array, Blob, Layer

ADVICE = "correct the data or the number of outputs"
ADVICE_IGNORING = f"{ADVICE}, or set ignore_label"


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
    labels, skipped, wrong = find_labels(layer, bottom, axis, ignored)
    _refuse(layer, bottom, 1, wrong, bottom[0].shape[axis], _words(layer, ADVICE_IGNORING))
    return labels, skipped


def label_error(layer: Layer, bottom: list[Blob], axis: int, value: float, position: int) -> NetError:
    """That of read_labels for a label of this value at this position."""
    return _error(layer, bottom, 1, value, position, bottom[0].shape[axis], _words(layer, ADVICE_IGNORING))


def find_labels(layer: Layer, bottom: list[Blob], axis: int, ignored: int | None) -> tuple[Array, Array | None, Array]:
    """The same without waiting for a device. Where a label is no class it reads as 0; the third says where."""
    labels, skipped, wrong = _read(layer, bottom, 1, bottom[0].shape[axis], ignored)
    positions = _positions(bottom[0], axis)
    return labels.reshape(positions), None if skipped is None else skipped.reshape(positions), wrong.reshape(positions)


def check_sample_labels(layer: Layer, bottom: list[Blob]) -> None:
    """NetError unless there is one label (bottom[1]) per sample of the scores (bottom[0])."""
    if bottom[0].shape[:1] != (bottom[1].count,):
        raise layer.error(f"needs one label per sample: {layer.named_shapes(bottom)}")


def read_sample_labels(layer: Layer, bottom: list[Blob]) -> Array:
    """(N, 1): the label of each sample, where every value of a sample's scores is a class. NetError if one is none."""
    classes = math.prod(bottom[0].shape[1:])
    labels, _, wrong = _read(layer, bottom, 1, classes, None)
    _refuse(layer, bottom, 1, wrong, classes, _words(layer, ADVICE))
    return labels.reshape(-1, 1)


def find_sample_labels(layer: Layer, bottom: list[Blob]) -> tuple[Array, Array]:
    """The same without waiting for a device. Where a label is no class it reads as 0; the second says where."""
    labels, _, wrong = _read(layer, bottom, 1, math.prod(bottom[0].shape[1:]), None)
    return labels.reshape(-1, 1), wrong.reshape(-1, 1)


def read_indices(layer: Layer, bottom: list[Blob], which: int, rows: int, owner: str) -> Array:
    """bottom[which] as indices, in its shape. NetError if one is not among the `rows` of the owner."""
    indices, _, wrong = _read(layer, bottom, which, rows, None)
    _refuse(layer, bottom, which, wrong, rows, ("index", "rows", owner, "correct the data"))
    return indices


def find_indices(layer: Layer, bottom: list[Blob], which: int, rows: int) -> tuple[Array, Array]:
    """The same without waiting for a device. Where one is none of the rows it reads as 0; the second says where."""
    indices, _, wrong = _read(layer, bottom, which, rows, None)
    return indices, wrong


def _words(layer: Layer, advice: str) -> tuple[str, str, str, str]:
    return "label", "classes", layer.bottom_name(0), advice


def _read(
    layer: Layer, bottom: list[Blob], which: int, limit: int, ignored: int | None
) -> tuple[Array, Array | None, Array]:
    """bottom[which] as integers from 0 to limit - 1, where they are ignored, and where they are neither."""
    indices = bottom[which].data.astype(layer.xp.int64)
    wrong = (indices < 0) | (indices >= limit)
    skipped = None
    if ignored is not None:
        skipped = indices == ignored
        indices = layer.xp.where(skipped, 0, indices)
        wrong &= ~skipped
    return layer.xp.where(wrong, 0, indices), skipped, wrong


def _refuse(
    layer: Layer, bottom: list[Blob], which: int, wrong: Array, limit: int, words: tuple[str, str, str, str]
) -> None:
    """NetError, of these words, if anything is wrong in bottom[which]."""
    if wrong.any():
        position = int(wrong.reshape(-1).argmax())
        raise _error(layer, bottom, which, float(bottom[which].data.reshape(-1)[position]), position, limit, words)


def _error(
    layer: Layer, bottom: list[Blob], which: int, value: float, at: int, limit: int, words: tuple[str, str, str, str]
) -> NetError:
    noun, among, owner, advice = words
    return layer.error(
        f"{noun} {value:g} at position {at} of {layer.bottom_name(which)} {bottom[which].shape} is none of the "
        f"{among} 0 to {limit - 1} of {owner}; {advice}"
    )


def _positions(scores: Blob, axis: int) -> tuple[int, ...]:
    return (*scores.shape[:axis], *scores.shape[axis + 1 :])
