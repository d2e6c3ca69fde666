"""What the layers of YOLO share (Redmon and Farhadi): boxes of all versions, and the cells of versions 2 and 3.

Boxes are NumPy arrays (..., 4) of centre x, centre y, width and height, as fractions of the image. At each cell of a
map, a net predicts for each of some anchors the values x, y, w, h, objectness and one score for each class:
(N, anchors * (5 + classes), H, W). Ground truth has a row (class, x, y, w, h) for each box. The host matches boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.data.boxes import intersections
from fcaffe.layers.loss import LossLayer
from fcaffe.net import Blob, Layer
from fcaffe.proto import caffe_pb2 as pb

IOU, GIOU, MSE, DIOU, CIOU = (getattr(pb.Yolov3Parameter, name) for name in ("IOU", "GIOU", "MSE", "DIOU", "CIOU"))


def corners(boxes: np.ndarray) -> np.ndarray:
    """The same boxes as (..., 4) of xmin, ymin, xmax, ymax."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def overlap(a: np.ndarray, b: np.ndarray, kind: int = IOU) -> np.ndarray:
    """How much the boxes a and b, whose shapes broadcast, overlap: intersection over union, 0 for boxes without area.

    GIOU subtracts the part of the enclosing box outside the union. DIOU and CIOU subtract a measure of the distance of
    the centres, CIOU also one of the difference in shape. DIOU has the power 0.6 of MobileNet-YOLO.
    """
    common = intersections(corners(a), corners(b))
    union = a[..., 2:].prod(axis=-1) + b[..., 2:].prod(axis=-1) - common
    iou = _quotient(common, union)
    if kind in (IOU, MSE):
        return iou
    (a_low, a_high), (b_low, b_high) = (np.split(corners(boxes), 2, axis=-1) for boxes in (a, b))
    sides = np.maximum(a_high, b_high) - np.minimum(a_low, b_low)  # of the box around both
    if kind == GIOU:
        enclosing = sides.prod(axis=-1)
        return iou - _quotient(enclosing - union, enclosing)
    distance = _quotient(((a - b)[..., :2] ** 2).sum(axis=-1), (sides**2).sum(axis=-1))
    if kind == DIOU:
        return iou - distance**0.6
    shape, weight = _shape_term(a, b, iou)
    return iou - (distance + weight * shape)


def clipped_overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of the parts of the boxes that lie in the image."""
    return overlap(_clipped(a), _clipped(b))


def overlap_gradient(a: np.ndarray, b: np.ndarray, kind: int) -> np.ndarray:
    """What MobileNet-YOLO takes for the derivative of `overlap` by a; both (K, 4).

    As in Darknet, that of the sides is twice the derivative, the intersection of boxes that are disjoint on both axes
    counts as positive, and DIOU has the power 1.
    """
    (a_low, a_high), (b_low, b_high) = (np.split(corners(boxes), 2, axis=-1) for boxes in (a, b))
    common = np.minimum(a_high, b_high) - np.maximum(a_low, b_low)
    enclosing = np.maximum(a_high, b_high) - np.minimum(a_low, b_low)
    disjoint = (common <= 0).any(axis=-1, keepdims=True)
    i, c = (sides.prod(axis=-1, keepdims=True) for sides in (common, enclosing))
    u = (a_high - a_low).prod(axis=-1, keepdims=True) + (b_high - b_low).prod(axis=-1, keepdims=True) - i
    sides = []  # derivatives by the lower, then by the upper corner
    for sign, shrinks, grows in ((-1, a_low > b_low, a_low < b_low), (1, a_high < b_high, a_high > b_high)):
        di, dc = (sign * where * other[:, ::-1] for where, other in ((shrinks, common), (grows, enclosing)))
        du = sign * (a_high - a_low)[:, ::-1] - di
        derivative = np.where(u > 0, _quotient(u * di - i * du, u * u), 0)
        if kind == GIOU:
            derivative = np.where(disjoint, 0, derivative) + _quotient(c * du - u * dc, c * c)
        sides.append(derivative)
    gradient = np.concatenate([sides[0] + sides[1], sides[1] - sides[0]], axis=-1)
    if kind in (DIOU, CIOU):
        below, above = a_low < b_low, a_high > b_high
        diagonal = (enclosing**2).sum(axis=-1, keepdims=True)
        distance = ((a - b)[:, :2] ** 2).sum(axis=-1, keepdims=True)
        growth = enclosing * distance * 2
        centre = 2 * (b - a)[:, :2] * diagonal - growth * (above.astype(a.dtype) - below)
        side = growth * (above.astype(a.dtype) + below) / 2
        gradient = np.where(disjoint, 0, gradient) + _quotient(
            np.concatenate([centre, side], axis=-1), diagonal * diagonal
        )
    if kind == CIOU:
        angle = np.arctan(b[:, 2] / b[:, 3]) - np.arctan(a[:, 2] / a[:, 3])
        _, weight = _shape_term(a, b, _quotient(i, u)[:, 0])
        gradient[:, 2:] += (8 / math.pi**2 * weight * angle)[:, None] * a[:, :1:-1] * [1, -1]
    return gradient


def _clipped(boxes: np.ndarray) -> np.ndarray:
    low, high = np.split(np.clip(corners(boxes), 0, 1), 2, axis=-1)
    return np.concatenate([(low + high) / 2, high - low], axis=-1)


def _shape_term(a: np.ndarray, b: np.ndarray, iou: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """CIOU's measure of the difference in shape, and its weight."""
    angles = (np.arctan(boxes[..., 2] / boxes[..., 3]) for boxes in (b, a))
    shape = 4 / math.pi**2 * (next(angles) - next(angles)) ** 2
    return shape, shape / (1 - iou + shape + 1e-6)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, 0 where b is 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


TRUTH = 5  # class, x, y, w, h
WHOLE_IMAGE = 100000  # x and y above it: a label of the image, without a box
SHAPE = np.array([0, 0, 1, 1], np.float32)  # times boxes: the same about the origin
CODES = slice(4)  # x, y, w, h of a prediction
OBJECTNESS = 4
SCORES = slice(5, None)


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = 1 / (1 + np.exp(np.abs(x)))  # so that 1 less the sigmoid has its digits too
    return np.where(x < 0, small, 1 - small)


def read_anchors(layer: Layer, biases: Any) -> np.ndarray:
    """(anchors, 2): width and height of each."""
    anchors = np.array(biases, np.float32)
    if not anchors.size or anchors.size % 2 or not (anchors > 0).all():
        raise layer.error("biases must be the width and height, both positive, of each anchor")
    return anchors.reshape(-1, 2)


def check_cells(layer: Layer, blob: Blob, anchors: int, classes: int) -> None:
    """NetError unless the blob has predictions of so many anchors and classes."""
    channels = anchors * (5 + classes)
    if len(blob.shape) != 4 or blob.shape[1] != channels or not classes:
        raise layer.error(
            f"needs maps with {anchors} anchors * (5 + {classes} classes) = {channels} channels, not {blob.shape}; "
            "correct the number of anchors or classes"
        )


def read_cells(layer: Layer, blob: Blob, anchors: int, classes: int) -> np.ndarray:
    """(N, H, W, anchors, 5 + classes): the predictions, a copy in host memory."""
    images, _, height, width = blob.shape
    cells = np.array(layer.engine.to_numpy(blob.data)).reshape(images, anchors, 5 + classes, height, width)
    return np.ascontiguousarray(cells.transpose(0, 3, 4, 1, 2))


def decoded(cells: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(N, H, W, A, 4): boxes of activated cells; the anchors (A, 2) are fractions of the image."""
    height, width = cells.shape[1:3]
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    origins = np.stack([columns, rows], axis=-1)[:, :, None]
    centres = (origins + cells[..., :2]) / np.array([width, height], np.float32)
    return np.concatenate([centres, np.exp(cells[..., 2:4]) * anchors], axis=-1)


def check_objects(layer: Layer, wrong: np.ndarray, images: np.ndarray, rows: np.ndarray, classes: int) -> None:
    """LayerError if one of the objects in the rows (T, 5) is `wrong` (T), is not finite, or is of no class."""
    wrong = wrong | ~np.isfinite(rows).all(axis=1) | (rows[:, 0] <= -1) | (rows[:, 0] >= classes)
    if wrong.any():
        index = int(wrong.argmax())
        raise layer.error(
            f"image {images[index]} has a row of ground truth (class, x, y, w, h) = "
            f"({', '.join(f'{value:g}' for value in rows[index])}); the class must be below {classes}, the centre "
            "inside the image, as fractions of its size, and the sides positive"
        )


class GridLoss(LossLayer):
    """Base of losses of predictions at the cells of a map."""

    traits = replace(LossLayer.traits, needs_host=True)
    p: Any  # the layer's own parameters

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_cells(self, bottom[0], self.p.num, self.p.num_class)
        if bottom[1].count % (TRUTH * max(1, bottom[1].shape[0])):
            raise self.error(f"needs rows of class, x, y, w and h for each image, not {self.named_shapes(bottom[1:])}")

    def store_cells(self, gradient: np.ndarray) -> None:
        """`store` the gradient (N, H, W, A, 5 + classes)."""
        self.store(np.ascontiguousarray(gradient.transpose(0, 3, 4, 1, 2)))

    def rows(self, bottom: list[Blob], column: int) -> tuple[np.ndarray, np.ndarray]:
        """Ground truth: the image of each row, and the rows (T, 5), of each image those before a 0 in this column."""
        truth = self.engine.to_numpy(bottom[1].data)
        truth = truth.reshape(len(truth), truth.size // max(1, len(truth)) // TRUTH, TRUTH)
        images, rows = np.nonzero(np.logical_and.accumulate(truth[..., column] != 0, axis=1))
        return images, truth[images, rows]

    def boxes_of(self, bottom: list[Blob], classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images (T,), classes (T,) and boxes (T, 4) of the ground truth that has an area. LayerError if it is none."""
        images, rows = self.rows(bottom, 3)
        boxed = ~(rows[:, 1:3] > WHOLE_IMAGE).all(axis=1) & (rows[:, 4] != 0)
        images, rows = images[boxed], rows[boxed]
        outside = (rows[:, 1:3] < 0) | (rows[:, 1:3] >= 1) | (rows[:, 3:] <= 0)
        check_objects(self, outside.any(axis=1), images, rows, classes)
        return images, rows[:, 0].astype(np.int64), rows[:, 1:]

    def best_overlaps(
        self, predicted: np.ndarray, bottom: list[Blob], measure: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """(N, H, W, A): the largest overlap, at least 0, of each prediction with the ground truth of its image."""
        best = np.zeros(predicted.shape[:-1], np.float32)
        images, rows = self.rows(bottom, 1)
        for image in np.unique(images):
            best[image] = measure(predicted[image][..., None, :], rows[images == image, 1:]).max(axis=-1)
        return np.maximum(best, 0)

    def cells_of(self, truth: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row and column of the cell with the centre of each box, and the centre (T, 2) within the cell."""
        scaled = truth[:, :2] * np.array([width, height], np.float32)
        cells = scaled.astype(np.int64)
        return cells[:, 1], cells[:, 0], (scaled - cells).astype(np.float32)
