"""Ground truth: the labelled boxes of a batch, as SSD's AnnotatedData layer writes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcaffe.net import Blob, Layer

ROW = 8  # image in the batch, label, instance, xmin, ymin, xmax, ymax, difficult


class Objects(NamedTuple):
    """Objects of a batch: the image (G), the label (G), the box (G, 4), and whether it is difficult to see (G)."""

    images: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    difficult: np.ndarray

    def of(self, chosen: np.ndarray) -> Objects:
        """The objects of these indices, or for which this is true."""
        return Objects(*(values[chosen] for values in self))


def check_ground_truth(layer: Layer, blob: Blob) -> None:
    """NetError unless the blob has the shape (1, 1, G, 8)."""
    if len(blob.shape) != 4 or blob.shape[3] != ROW:
        raise layer.error(f"needs ground truth of the shape (1, 1, G, {ROW}), not {blob.shape}")


def read_ground_truth(layer: Layer, blob: Blob, classes: int | None, background: int, ends: bool = False) -> Objects:
    """The objects in the rows of the blob, without the rows of image -1; it `ends` before the first of these, or not.

    Raises NetError for a label that is none of the `classes` (None: any), or is that of the background.
    """
    rows = layer.engine.to_numpy(blob.data).reshape(-1, ROW)
    used = rows[:, 0] != -1
    rows = rows[np.logical_and.accumulate(used) if ends else used]
    labels = rows[:, 1].astype(int)
    wrong = (labels < 0) | (labels == background)
    if classes is not None:
        wrong |= labels >= classes
    if wrong.any():
        last = "any number" if classes is None else classes - 1
        raise layer.error(
            f"an object has the label {rows[wrong.argmax(), 1]:g}; labels are 0 to {last} without the background's, "
            f"{background}; correct the data, num_classes or background_label_id"
        )
    return Objects(rows[:, 0].astype(int), labels, rows[:, 3:7], rows[:, 7] != 0)
