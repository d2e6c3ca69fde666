"""What SSD's layers share: the predictions of a net, the objects of a batch, and rows of detections."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits

OBJECT_ROW = 8  # image in the batch, label, instance, xmin, ymin, xmax, ymax, difficult
DETECTION_ROW = 7  # image in the batch, label, score, xmin, ymin, xmax, ymax


class Predictions(NamedTuple):
    """Codes of boxes (N, P, 1 or classes, 4), scores (N, P, classes), priors and their variances (P, 4)."""

    codes: np.ndarray
    scores: np.ndarray
    priors: np.ndarray
    variances: np.ndarray


def check_predictions(layer: Layer, bottom: list[Blob], p: Any) -> None:
    """NetError unless codes, scores and priors, the first three bottoms, are of as many priors."""
    codes, scores, priors = bottom[:3]
    count = priors.count // 8 if priors.shape[:2] == (1, 2) and priors.count % 8 == 0 else -1
    per_image = [blob.count // blob.shape[0] if blob.shape[0] else None for blob in (codes, scores)]
    wanted = [count * 4 * (1 if p.share_location else p.num_classes), count * p.num_classes]
    fits = all(have in (None, want) for have, want in zip(per_image, wanted, strict=True))
    if codes.shape[:1] != scores.shape[:1] or not fits:
        raise layer.error(
            f"needs 4 codes{'' if p.share_location else ' of each class'} and {p.num_classes} scores for each prior: "
            f"{layer.named_shapes(bottom[:3])}; correct num_classes or share_location"
        )


def read_predictions(layer: Layer, bottom: list[Blob], p: Any) -> Predictions:
    """The predictions in the first three bottoms, in host memory."""
    codes, scores, priors = (layer.engine.to_numpy(blob.data) for blob in bottom[:3])
    priors, variances = priors.reshape(2, -1, 4)
    shape = len(codes), len(priors)
    codes = codes.reshape(*shape, 1 if p.share_location else p.num_classes, 4)
    return Predictions(codes, scores.reshape(*shape, p.num_classes), priors, variances)


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
    if len(blob.shape) != 4 or blob.shape[3] != OBJECT_ROW:
        raise layer.error(f"needs ground truth of the shape (1, 1, G, {OBJECT_ROW}), not {blob.shape}")


def read_ground_truth(layer: Layer, blob: Blob, classes: int | None, background: int, ends: bool = False) -> Objects:
    """The objects in the rows of the blob, without the rows of image -1; it `ends` before the first of these, or not.

    Raises NetError for a label that is none of the `classes` (None: any), or is that of the background.
    """
    rows = layer.engine.to_numpy(blob.data).reshape(-1, OBJECT_ROW)
    used = rows[:, 0] != -1
    rows = rows[np.logical_and.accumulate(used) if ends else used]
    labels = np.nan_to_num(rows[:, 1], nan=-1).astype(int)
    wrong = (labels < 0) | (labels == background)
    if classes is not None:
        wrong |= labels >= classes
    if wrong.any():
        last = "any number" if classes is None else classes - 1
        raise layer.error(
            f"an object has the label {rows[wrong.argmax(), 1]:g}; labels are 0 to {last} without the background's, "
            f"{background}; correct the data, num_classes or background_label_id"
        )
    return Objects(np.nan_to_num(rows[:, 0], nan=-1).astype(int), labels, rows[:, 3:7], rows[:, 7] != 0)


def judge(overlaps: np.ndarray, threshold: float, ignored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which detections (D), best first, are true and which are false, by their overlaps (D, G) with G objects.

    A detection stands for the object that it overlaps most, if by the threshold or more. It is true if it is the first
    one of that object, but neither true nor false if the object is `ignored` (G).
    """
    overlaps, ignored = np.pad(overlaps, ((0, 0), (0, 1)), constant_values=-np.inf), np.append(ignored, False)
    best = overlaps.argmax(axis=1)
    near = overlaps.max(axis=1) >= np.float32(threshold)
    _, first = np.unique(np.where(near, best, -1), return_index=True)
    true = np.zeros(len(best), bool)
    true[first] = near[first]
    counts = ~(near & ignored[best])
    return true & counts, ~true & counts


class DetectionRows(Layer):
    """Base: the top (1, 1, D, columns) has as many rows as `forward` writes."""

    traits = Traits(bottoms=2, tops=1, shapes_by_values=True, needs_host=True, labels=ALL_BOTTOMS)

    def write_rows(self, rows: np.ndarray, top: list[Blob]) -> None:
        top[0].reshape(1, 1, *rows.shape)
        top[0].data[...] = self.engine.from_numpy(rows)

    def write_detections(self, rows: np.ndarray, images: int, top: list[Blob]) -> None:
        """Write the rows (D, 7); without any, a row for each image, with -1 behind its number."""
        if not len(rows):
            rows = np.full((images, DETECTION_ROW), -1, np.float32)
            rows[:, 0] = np.arange(images)
        self.write_rows(rows, top)
